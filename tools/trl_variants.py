"""The variants inside a production trainer: TRL's GRPOTrainer with the advantages of VARIANTS.

tools/language_model.py trains a language model with it. In a program of your own, which you run in
the repository's folder, the rewards must be 0 or 1:

    from trl import GRPOConfig
    from tools.trl_variants import VariantTrainer, trl_settings

    rollout = {"per_device_train_batch_size": 8, "steps_per_generation": 32, "num_generations": 8}
    config = GRPOConfig(**trl_settings("half"), **rollout, gradient_accumulation_steps=8)
    VariantTrainer("half", model, reward_function, config, dataset).train()

The packages are those of tools/requirements-trl.txt. tools/trainers.md says more.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

try:
    import torch
    from transformers import HfArgumentParser
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer.utils import split_tensor_dict
except ModuleNotFoundError as error:
    INSTALL = "python -m pip install -r requirements.txt -r tools/requirements-trl.txt"
    raise SystemExit(f"The package {error.name} is not installed. Run: {INSTALL}") from None

from advantages import LOSS, VARIANTS, with_advantages
from grpo import Rollout

# What these variants do besides computing advantages.
ALSO = {"likelihood": "scores the answer", "critic": "trains a network", "culling": "drops prompts"}
ALSO |= {"verifree": "trains the true answer in place of the sampled one"}
ALSO |= {"process": "reads the steps of the solution"}
LOSS_TYPE = {"token": "dapo", "response": "grpo", "constant": "dr_grpo"}  # TRL's, of `aggregate`


def trl_settings(variant: str) -> dict:
    """Arguments of GRPOConfig: what LOSS says of a variant, our KL term, and no dropout.

    TRL multiplies the KL term by the ratio unless use_bias_correction_kl is False. With False, its
    `beta` is the `--kl` of train.py; with `beta` 0, its default, there is no KL term.
    TRL samples in training mode. With the dropout of 0.1 that a GPT-2 has by default, the base
    model of `add` solved 2 % of its problems instead of 14 %.
    """
    loss = {"clip_low": 0.2, "clip_high": 0.2, "aggregate": "token"} | LOSS.get(variant, {})
    same = {"use_bias_correction_kl": False, "disable_dropout": True}
    if variant == "cispo":  # epsilon_high is the cap itself, and no lower limit is read
        return same | {"loss_type": "cispo", "epsilon_high": 1 + loss["clip_high"]}
    same |= {"epsilon": loss["clip_low"], "epsilon_high": loss["clip_high"]}
    same["importance_sampling_level"] = "sequence" if variant == "gspo" else "token"
    return same | {"loss_type": LOSS_TYPE[loss["aggregate"]]}


class VariantTrainer(GRPOTrainer):
    """GRPOTrainer, but a variant gives each token its advantage.

    A process has B = P*G rows: P whole groups, one after the other, of at most T response tokens.
    TRL computes one advantage for each response, (B,). Its loss also takes one for each token,
    (B, T), from a subclass. This class keeps the rewards, makes a Rollout of each group in TRL's
    batch, and puts the advantages of VARIANTS[variant] into the batch. (TRL's table of completions
    still shows TRL's own advantages.)
    """

    def __init__(self, variant: str, *parts, **named):
        """The variant, then the arguments of GRPOTrainer. ValueError for what cannot work."""
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
        # NaN where a reward function returned None: it does not judge this row.
        rewards = (columns * self.reward_weights.to(columns.device)).nansum(1)
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
            rollouts = [self.group_rollout(*group) for group in groups]
            if self.variant == "forking":  # it has one threshold for the batch
                rollouts = [joined(rollouts)]
            trained = [with_advantages(rollout, VARIANTS[self.variant]) for rollout in rollouts]
            batch["advantages"] = torch.cat([x.A.flatten(0, 1) for x in trained])  # (B, T)
        return batch

    @torch.no_grad()
    def group_rollout(self, group: dict, rewards: torch.Tensor) -> Rollout:
        """One group of TRL's batch, G rows, and its rewards (G,), as a Rollout with P = 1.

        Some variants read more than rewards, tokens and mask, and for them one forward pass is
        made: for `compensation` it gives the log-probabilities, for `forking` and `nthr` the
        probabilities (G, T, V) and the hidden vectors (G, T, D). Elsewhere these are None.
        """
        tokens = group["completion_ids"]
        T = tokens.size(1)
        mask = (group["completion_mask"] * group.get("tool_mask", 1)).bool()
        ids = torch.cat([group["prompt_ids"], tokens], dim=1)  # (G, Lp + T)
        seen = torch.cat([group["prompt_mask"], group["completion_mask"]], dim=1)
        logprobs = probs = hidden = None
        if self.variant == "compensation":
            logprobs = self._get_per_token_logps_and_entropies(self.model, ids, seen, T)[0][None]
        if self.variant in ("forking", "nthr"):
            keep = {"logits_to_keep": T + 1, "output_hidden_states": True}
            out = self.model(ids, attention_mask=seen, **keep)
            # The logits at t - 1 score token t.
            probs = (out.logits[:, :-1].float() / self.temperature).softmax(-1)[None]
            hidden = out.hidden_states[-1][:, -T - 1 : -1].float()[None]
        return Rollout(tokens[None], mask[None], rewards[None], logprobs, probs, hidden)


def joined(rollouts: list[Rollout]) -> Rollout:
    """One rollout of several, with tokens, mask, rewards and probabilities."""
    names = ("tokens", "mask", "rewards", "probs")
    tokens, mask, rewards, probs = (torch.cat([vars(x)[n] for x in rollouts]) for n in names)
    return Rollout(tokens, mask, rewards, None, probs, None)


def parse(
    module: str, own: dict, line: list[str] | None = None, **flags: str
) -> tuple[Namespace, GRPOConfig]:
    """Reads a command line, by default that of the process: --variant, own flags and GRPOConfig's.

    own: arguments of GRPOConfig where the line says nothing. flags: own flags and their defaults.
    """
    about = {"prog": f"python -m tools.{module}", "usage": "%(prog)s [--variant NAME] [flags]"}
    first = ArgumentParser(**about, add_help=False)
    names = [name for name in VARIANTS if name not in ALSO]
    first.add_argument("--variant", choices=names, default="grpo", help="the advantages")
    for flag, default in flags.items():
        first.add_argument(f"--{flag}", default=default)
    # The variant is parsed first: its own loss is the default where no flag is given.
    cli, rest = first.parse_known_args(line)
    parser = HfArgumentParser(GRPOConfig, **about, parents=[first])
    parser.set_defaults(**trl_settings(cli.variant), **own)
    cli.error = parser.error
    try:
        config, _ = parser.parse_args_into_dataclasses(rest)
    except ValueError as error:
        parser.error(str(error))
    start = config.resume_from_checkpoint
    if start and not Path(start).is_dir():
        parser.error(f"--resume_from_checkpoint {start}: there is no such folder")
    return cli, config
