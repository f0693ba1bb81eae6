"""The variants inside a production trainer: TRL's GRPOTrainer with the advantages of VARIANTS.

    python -m tools.trl_variants --variant negative

trains the base model of `add`, as a transformers model, for 20 steps. Printed are the mean reward
and the share of all-fail groups on held-out prompts, before and after. All other flags are those of
TRL's GRPOConfig, such as --max_steps.

A language model, with rewards of your own, 0 or 1, in a program in the repository's folder:

    from tools.trl_variants import VariantTrainer, trl_settings

    config = GRPOConfig(**trl_settings("nthr"), num_generations=8)
    VariantTrainer("nthr", model, reward_function, config, dataset).train()

Needs the packages of tools/requirements-trl.txt; tools/trainers.md says more.
"""

from functools import partial

import torch
from datasets import Dataset
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM
from transformers import HfArgumentParser, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from advantages import LOSS, VARIANTS
from grpo import Rollout
from tasks import ADD, EOS, PAD, TOKENIZER, Problem
from train import base_model, make_problems, parse_arguments

# What some variants do beside their function.
ALSO = {"likelihood": "scores the answer", "critic": "trains a network", "culling": "drops prompts"}
ALSO |= {"verifree": "trains the true answer in place of the sampled one"}
LOSS_TYPE = {"token": "dapo", "response": "grpo", "constant": "dr_grpo"}  # TRL's, of `aggregate`
# Settings for this project's model; 512 rows are 64 groups of 8, 296 a 13th of the held-out ones.
ROWS = {"per_device_train_batch_size": 512, "per_device_eval_batch_size": 296, "bf16": False}
NEW_TOKENS = len(ADD.longest.solution) + 1
OWN = ROWS | {"max_completion_length": NEW_TOKENS, "output_dir": "runs/trl"}
OWN |= {"learning_rate": 3e-4, "max_grad_norm": 0.01}


def twin(model) -> tuple[GPTBigCodeForCausalLM, PreTrainedTokenizerFast]:
    """GPTBigCode with our weights, and its tokenizer; tests/test_trl.py compares the two."""
    # To transformers these are more than characters.
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, pad_token=PAD, eos_token=EOS)
    V, D = model.embed_token.weight.size()
    size = {"vocab_size": V, "n_embd": D, "n_positions": model.embed_position.num_embeddings}
    depth = {"n_layer": len(model.blocks), "n_head": model.blocks[0].heads}
    kind = {"activation_function": "relu", "tie_word_embeddings": False}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    theirs = GPTBigCodeForCausalLM(GPTBigCodeConfig(**size, **depth, **kind, **off, **ids))
    weights = model.state_dict().values()  # they come in the same order
    theirs.load_state_dict(dict(zip(theirs.state_dict(), weights, strict=True)))
    return theirs, tokenizer


def trl_settings(variant: str) -> dict:
    """Arguments of GRPOConfig: what LOSS says of a variant, and no dropout.

    TRL samples in training mode. With the dropout of 0.1 that a GPT-2 has by default, the base
    model of `add` solved 0.8 % of its problems in place of 21 %.
    """
    loss = {"clip_low": 0.2, "clip_high": 0.2, "aggregate": "token"} | LOSS.get(variant, {})
    clip = {"epsilon": loss["clip_low"], "epsilon_high": loss["clip_high"]}
    return clip | {"loss_type": LOSS_TYPE[loss["aggregate"]], "disable_dropout": True}


class VariantTrainer(GRPOTrainer):
    """GRPOTrainer, but a variant gives each token its advantage.

    A process has B = P*G rows: P whole groups, one after the other, of at most T response tokens.
    TRL makes an advantage for each response, (B,), and its loss also takes (B, T) from a subclass.
    This one keeps the rewards, builds a Rollout of what TRL has and puts VARIANTS[variant] of it
    into TRL's batch. (TRL's table of completions still shows TRL's own advantages.)
    """

    def __init__(self, variant: str, *parts, **named):
        """After the variant the arguments of GRPOTrainer. ValueError for what cannot work."""
        if variant in ALSO:
            raise ValueError(f"{variant} is refused: it also {ALSO[variant]}, which TRL does not")
        super().__init__(*parts, **named)
        self.variant = variant
        rows = self.args.per_device_train_batch_size * self.args.steps_per_generation
        if rows % self.num_generations:
            raise ValueError(f"{rows} rows a device: not whole groups of {self.num_generations}")

    def _calculate_rewards(self, inputs, prompts, *rest) -> torch.Tensor:
        """TRL's rewards: the rows of all processes, a column for each reward function.

        Keeps their weighted sums for this process's groups, P times (G,).
        """
        columns = super()._calculate_rewards(inputs, prompts, *rest)
        rewards = columns @ self.reward_weights.to(columns.device)
        if not ((rewards == 0) | (rewards == 1)).all():
            raise ValueError("rewards must be 0 or 1: they say what is correct and what all-fail")
        G = self.num_generations if self.model.training else self.num_generations_eval
        self._log_metric("all_fail", (rewards.view(-1, G) == 0).all(1).float().mean().item())
        self.rewards = rewards.split(len(prompts))[self.accelerator.process_index].split(G)
        return columns

    def _generate_and_score_completions(self, inputs: list) -> dict:
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:  # an evaluation has no update
            groups = zip(split_tensor_dict(batch, len(self.rewards)), self.rewards)
            A = [VARIANTS[self.variant](self.group_rollout(*group)).A for group in groups]
            batch["advantages"] = torch.cat(A, dim=1)[0]  # P times (1, G, T) -> (B, T)
        return batch

    @torch.no_grad()
    def group_rollout(self, group: dict, rewards: torch.Tensor) -> Rollout:
        """One group of TRL's batch, G rows, and its rewards (G,) as a Rollout with P = 1.

        One forward pass gives what only some variants read: to `compensation` log-probabilities, to
        `nthr` probabilities (G, T, V) and hidden vectors (G, T, D). To the others it is None.
        """
        tokens = group["completion_ids"]
        T = tokens.size(1)
        mask = (group["completion_mask"] * group.get("tool_mask", 1)).bool()
        ids = torch.cat([group["prompt_ids"], tokens], dim=1)  # (G, Lp + T)
        seen = torch.cat([group["prompt_mask"], group["completion_mask"]], dim=1)
        logprobs = probs = hidden = None
        if self.variant == "compensation":
            logprobs = self._get_per_token_logps_and_entropies(self.model, ids, seen, T)[0][None]
        if self.variant == "nthr":
            keep = {"logits_to_keep": T + 1, "output_hidden_states": True}
            out = self.model(ids, attention_mask=seen, **keep)
            # The logits at t - 1 score token t.
            probs = (out.logits[:, :-1].float() / self.temperature).softmax(-1)[None]
            hidden = out.hidden_states[-1][:, -T - 1 : -1].float()[None]
        return Rollout(tokens[None], mask[None], rewards[None], logprobs, probs, hidden)


def verifier(tokenizer, completion_ids: list, answer: list, **_) -> list[float]:
    """The reward: 1.0 if a response has one "#", then the answer, then end-of-sequence; else 0.0.

    It reads the tokens. In the text that TRL decodes special tokens are left out: a response that
    was cut off looks as if it had ended, and a sampled padding token is not seen.
    """
    goals = [Problem("", "", text + tokenizer.eos_token, 0) for text in answer]
    return [ADD.reward(goal, y) for goal, y in zip(goals, tokenizer.batch_decode(completion_ids))]


if __name__ == "__main__":
    parser = HfArgumentParser(GRPOConfig, usage="trl_variants [--variant NAME] [flags]")
    names = [name for name in VARIANTS if name not in ALSO]
    parser.add_argument("--variant", choices=names, default="grpo", help="the advantages")
    cli, _ = parser.parse_known_args()
    parser.set_defaults(max_steps=20, **trl_settings(cli.variant), **OWN)
    config, _ = parser.parse_args_into_dataclasses()
    model, tokenizer = twin(base_model(parse_arguments([])))
    # Training and held-out.
    data = [Dataset.from_list([p._asdict() for p in make_problems(ADD, h)]) for h in (False, True)]
    reward = partial(verifier, tokenizer)
    trainer = VariantTrainer(cli.variant, model, reward, config, *data, tokenizer)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    for name in ("eval_reward", "eval_all_fail"):
        trainer.accelerator.print(f"{name}: {before[name]:.3f} before, {after[name]:.3f} after")
