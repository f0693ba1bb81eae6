"""The variants inside a production trainer: TRL's GRPOTrainer with the advantages of VARIANTS.

    python -m studies.trl_variants --variant negative
    python -m studies.trl_variants --variant negative --model NAME_OR_PATH --dataset FILE.jsonl

The first line trains the base model of `add`, as a transformers model, for 20 steps; the second any
causal language model. Both print reward and all-fail on held-out prompts, before and after. All
other flags are those of TRL's GRPOConfig, such as --max_steps, --learning_rate and --use_vllm.

A line of the dataset is {"prompt": ..., "answer": ...}. The prompt is text or a list of messages. A
response is correct if it ends by itself and has exactly one "#" with exactly the answer after it.

In a program of one's own, with rewards of one's own (0 or 1):

    config = GRPOConfig(**loss_settings("nthr"), num_generations=8, disable_dropout=True)
    VariantTrainer("nthr", model, reward_function, config, dataset).train()

Needs the packages of studies/requirements-trl.txt. Line by line: docs/trainers.md.
"""

import sys

import torch
from datasets import Dataset, DatasetDict, load_dataset
from torch import Tensor
from transformers import AutoTokenizer, HfArgumentParser
from trl import GRPOConfig, GRPOTrainer

import train
from advantages import LOSS, VARIANTS
from grpo import Rollout
from studies.common import markdown
from studies.speed import twin
from tasks import ADD, Problem

REFUSED = {
    "likelihood": "it needs the true answer's probability after each response's own reasoning",
    "critic": "it trains a second network beside the policy",
    "culling": "it changes the training set and no advantage",
}
# grpo.policy_loss's aggregate -> TRL's loss_type. (dapo is bnpo with the tokens of all processes.)
LOSS_TYPE = {"token": "bnpo", "response": "grpo", "constant": "dr_grpo"}
# Settings where no flag is given: of every model, and of this project's.
DEFAULTS = {
    "max_steps": 20,
    "disable_dropout": True,  # else sampling and scoring differ
    "report_to": "none",
    "save_strategy": "no",
    "output_dir": "runs/trl",
}
SMALL = {
    "per_device_train_batch_size": 512,  # 64 groups of 8
    "per_device_eval_batch_size": 448,
    "max_completion_length": len(ADD.longest.solution) + 1,
    "learning_rate": 3e-4,
    "bf16": False,
    "gradient_checkpointing": False,
}


def loss_settings(variant: str) -> dict:
    """What LOSS says of a variant, as arguments of GRPOConfig."""
    loss = {"clip_low": 0.2, "clip_high": 0.2, "aggregate": "token"} | LOSS.get(variant, {})
    kind = LOSS_TYPE[loss["aggregate"]]
    return {"epsilon": loss["clip_low"], "epsilon_high": loss["clip_high"], "loss_type": kind}


class VariantTrainer(GRPOTrainer):
    """GRPOTrainer, but each token has the advantage that a variant gives it.

    A process has B = P*G rows, whole groups one after the other, and T tokens of response at most.
    TRL makes one advantage for each response, (B,), and its loss accepts (B, T) from a subclass.
    So this class keeps the rewards, builds a Rollout of what TRL has, and puts the advantages of
    VARIANTS[variant] into TRL's batch. TRL's table of completions still shows its own.
    """

    def __init__(self, variant: str, *parts, **named):
        """The arguments after `variant` are GRPOTrainer's. ValueError for what cannot work."""
        if variant in REFUSED:
            raise ValueError(f"{variant} does not run inside TRL: {REFUSED[variant]}")
        super().__init__(*parts, **named)
        self.variant = variant
        rows = self.args.per_device_train_batch_size * self.args.steps_per_generation
        if rows % self.num_generations:
            raise ValueError(
                f"a group must stay in one process: per_device_train_batch_size x "
                f"steps_per_generation, {rows}, is no multiple of {self.num_generations} responses"
            )

    def _calculate_rewards(self, inputs, prompts, *rest) -> Tensor:
        """TRL's rewards (processes * B, functions); keeps those of this process as (B,)."""
        by_function = super()._calculate_rewards(inputs, prompts, *rest)
        rewards = by_function @ self.reward_weights.to(by_function.device)
        if not ((rewards == 0) | (rewards == 1)).all():
            raise ValueError("rewards must be 0 or 1: they define what is correct and all-fail")
        G = self.num_generations if self.model.training else self.num_generations_eval
        all_fail = (rewards.view(-1, G) == 0).all(1)
        self._log_metric("all_fail", all_fail.float().mean().item())
        first = self.accelerator.process_index * len(prompts)
        self.rewards = rewards[first : first + len(prompts)]
        return by_function

    def _generate_and_score_completions(self, inputs: list) -> dict:
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:  # an evaluation has no update
            batch["advantages"] = self.token_advantages(batch)
        return batch

    def token_advantages(self, batch: dict) -> Tensor:
        """The variant's advantages (B, T), a group at a time: nthr needs its memory once."""
        G = self.num_generations
        groups = (slice(i, i + G) for i in range(0, len(self.rewards), G))
        A = [VARIANTS[self.variant](self.group_rollout(batch, rows)) for rows in groups]
        return torch.cat(A, dim=1)[0]  # P times (1, G, T) -> (B, T)

    @torch.no_grad()
    def group_rollout(self, batch: dict, rows: slice) -> Rollout:
        """These rows of TRL's batch as a Rollout of one group; fields the variant ignores: None.

        One forward pass gives what TRL does not keep: for `compensation` the log-probabilities, for
        `nthr` probabilities (G, T, V) and hidden vectors (G, T, D). The logits at t - 1 score t.
        """
        tokens = batch["completion_ids"][rows]  # (G, T)
        mask = (batch["completion_mask"] * batch.get("tool_mask", 1))[rows].bool()
        ids = torch.cat([batch["prompt_ids"][rows], tokens], dim=1)  # (G, Lp + T)
        seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)[rows]
        T = tokens.size(1)
        logprobs = probs = hidden = None
        if self.variant == "compensation" and "old_per_token_logps" in batch:
            logprobs = batch["old_per_token_logps"][rows]
        elif self.variant == "compensation":
            logprobs, _, _ = self._get_per_token_logps_and_entropies(self.model, ids, seen, T)
        elif self.variant == "nthr":
            keep = {"logits_to_keep": T + 1, "output_hidden_states": True, "use_cache": False}
            with self.accelerator.autocast():
                output = self.model(input_ids=ids, attention_mask=seen, **keep)
            probs = (output.logits[:, :-1].float() / self.temperature).softmax(-1)
            hidden = output.hidden_states[-1][:, -T - 1 : -1].float()
        fields = (tokens, mask, self.rewards[rows], logprobs, probs, hidden)
        return Rollout(*(None if field is None else field[None] for field in fields))


def verifier(tokenizer):
    """TRL's reward function for these tokens: 1.0 if the response ended and its answer is right.

    It reads token ids. TRL's text lacks special tokens, so a response that was cut off looks like
    one that ended, and a sampled padding token like nothing.
    """

    def reward(completion_ids, answer, **_) -> list[float]:
        texts = tokenizer.batch_decode(completion_ids)
        end = tokenizer.eos_token
        scores = [
            ADD.reward(Problem("", "", a, 0), y.removesuffix(end)) for a, y in zip(answer, texts)
        ]
        return [score * y.endswith(end) for score, y in zip(scores, texts)]

    return reward


def problems(held: bool) -> Dataset:
    rows = train.make_problems(ADD, held)
    return Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in rows])


def main(argv: list[str]) -> None:
    parser = HfArgumentParser(GRPOConfig, description=__doc__.splitlines()[0])
    parser.add_argument("--variant", choices=VARIANTS, default="grpo", help="the advantages")
    parser.add_argument("--model", help="a causal language model; without it this project's")
    parser.add_argument("--dataset", help="a file of JSON lines; without it the problems of add")
    parser.set_defaults(**DEFAULTS)
    own, _ = parser.parse_known_args(argv)
    if own.variant in REFUSED:
        parser.error(f"{own.variant} does not run inside TRL: {REFUSED[own.variant]}")
    parser.set_defaults(**loss_settings(own.variant), **({} if own.model else SMALL))
    config, _ = parser.parse_args_into_dataclasses(argv)
    if own.model:
        model = own.model
        tokenizer = AutoTokenizer.from_pretrained(model)
    else:
        args = train.parse_arguments(["--device", "cpu", "--out", config.output_dir])
        model, tokenizer = twin(train.base_model(args))
    data = DatasetDict(train=problems(held=False), test=problems(held=True))
    if own.dataset:
        data = load_dataset("json", data_files=own.dataset, split="train").train_test_split(0.1)
    parts = (model, verifier(tokenizer), config, data["train"], data["test"], tokenizer)
    trainer = VariantTrainer(own.variant, *parts)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    if trainer.is_world_process_zero():
        rows = []
        for name in ("reward", "all_fail"):
            rows.append([name, *(f"{found[f'eval_{name}']:.3f}" for found in (before, after))])
        print(markdown(["held-out prompts", "before", f"after {config.max_steps} steps"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
