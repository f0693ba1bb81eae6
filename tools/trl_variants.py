"""The variants inside a production trainer: TRL's GRPOTrainer with the advantages of VARIANTS.

Write a program like this, and run it in the repository's folder:

    from trl import GRPOConfig
    from tools.trl_variants import VariantTrainer, trl_settings

    rollout = {"per_device_train_batch_size": 8, "steps_per_generation": 32, "num_generations": 8}
    config = GRPOConfig(**trl_settings("half"), **rollout, gradient_accumulation_steps=8)
    VariantTrainer("half", model, reward_function, config, dataset).train()

The packages are those of tools/requirements-trl.txt. tools/trainers.md says more.
"""

from logging import getLogger

import torch
from trl import GRPOConfig, GRPOTrainer, __version__

from advantages import LOSS, VARIANTS, with_advantages
from grpo import Rollout

if not __version__.startswith("1.16."):
    getLogger(__name__).warning(f"TRL {__version__}: we tested only TRL 1.16")

# What these variants do besides computing advantages.
ALSO = {"likelihood": "scores the answer", "critic": "trains a network", "culling": "drops prompts"}
ALSO |= {"verifree": "trains the true answer in place of the sampled one"}
ALSO |= {"process": "reads the steps of the solution", "ppo": "trains a network"}
LOSS_TYPE = {"token": "dapo", "response": "grpo", "constant": "dr_grpo"}  # TRL's, of `aggregate`
# Options of TRL that would change the loss, or the advantages that we replace, keep its defaults.
KEPT = ["scale_rewards", "multi_objective_aggregation", "entropy_coef", "use_adaptive_entropy"]
KEPT += ["mask_truncated_completions", "off_policy_mask_threshold", "top_entropy_quantile", "delta"]
# These ask which rewards are 0 or 1, imagine a reward of 1, or divide by the share that is correct.
BINARY = {"negative", "nthr", "ngrpo", "maxrl"}


def trl_settings(variant: str) -> dict:
    """Arguments of GRPOConfig: what LOSS says of a variant, our KL term, and no dropout.

    For another clip range or `aggregate`, change LOSS of advantages.py before you call this, for
    example with LOSS["gspo"] |= {"clip_low": 3e-4, "clip_high": 4e-4}.

    TRL multiplies the KL term by the ratio unless use_bias_correction_kl is False. With False, its
    `beta` is the `--kl` of train.py; with `beta` 0, its default, there is no KL term.

    TRL samples in training mode. With the dropout of 0.1 that a GPT-2 has by default, the base
    model of `add` solved 2 % of its problems instead of 14 %. disable_dropout sets every
    torch.nn.Dropout of the model to 0, also that of LoRA (lora_dropout). It does not reach a
    dropout that is a number in the model's configuration, such as Llama's attention_dropout.
    """
    if variant in ALSO:
        raise ValueError(f"{variant} is refused: it also {ALSO[variant]}, which TRL does not")
    loss = {"clip_low": 0.2, "clip_high": 0.2, "aggregate": "token"} | LOSS.get(variant, {})
    kind = loss.get("loss_type")
    # The epsilon_high of cispo is the cap itself, 1 + clip_high.
    settings = {"epsilon": loss["clip_low"], "epsilon_high": loss["clip_high"] + (kind == "cispo")}
    settings |= {"use_bias_correction_kl": False, "disable_dropout": True}
    settings["importance_sampling_level"] = "sequence" if kind == "gspo" else "token"
    settings["loss_type"] = kind if kind == "cispo" else LOSS_TYPE[loss["aggregate"]]
    return settings


class VariantTrainer(GRPOTrainer):
    """GRPOTrainer, but a variant gives each token its advantage.

    A process has B = P*G rows: P whole groups, one after the other, of at most T response tokens.
    TRL computes one advantage for each response, (B,). Its loss also takes one for each token,
    (B, T), from a subclass. This class keeps the rewards, makes a Rollout of each group in TRL's
    batch, and puts the advantages of VARIANTS[variant] into the batch. (TRL's table of completions
    still shows TRL's own advantages.)

    The reward of a response is the weighted sum of what the reward functions return, as in TRL. It
    is 0 or 1 for `negative`, `nthr`, `ngrpo` and `maxrl`, and may be any finite number for the
    others, which compare rewards within a group (`reinforce` uses them as they are). A response for
    which every function returns None is left out, as in TRL: it does not count in its group, and
    its advantage is 0. (`forking` leaves out the whole group: its groups need one size.)
    `all_fail`, which is added to TRL's log, is the share of groups without a reward above 0.
    """

    def __init__(self, variant: str, model, reward_funcs, args: GRPOConfig, *parts, **named):
        """The variant, then the arguments of GRPOTrainer. ValueError for what cannot work."""
        wanted = {name: getattr(GRPOConfig, name) for name in KEPT} | trl_settings(variant)
        other = [f"{x}={wanted[x]!r}" for x in wanted if getattr(args, x) != wanted[x]]
        if other:
            raise ValueError(f"{variant} needs {', '.join(other)}: see tools/trl_variants.py")
        rows = args.per_device_train_batch_size * args.steps_per_generation
        if rows % args.num_generations:
            raise ValueError(f"{rows} rows a device: not whole groups of {args.num_generations}")
        self.variant = variant
        super().__init__(model, reward_funcs, args, *parts, **named)

    def _calculate_rewards(self, inputs, prompts, *rest) -> torch.Tensor:
        """TRL's rewards: the rows of all processes, a column for each reward function.

        Keeps their weighted sums for this process's groups, P times (G,).
        """
        columns = super()._calculate_rewards(inputs, prompts, *rest)
        # NaN where a reward function returned None: it does not judge this row.
        rewards = (columns * self.reward_weights.to(columns.device)).nansum(1)
        fine = (rewards == 0) | (rewards == 1) | (self.variant not in BINARY) & rewards.isfinite()
        if not fine.all():
            kind = "0 or 1" if self.variant in BINARY else "a finite number"
            raise ValueError(f"{self.variant}: a reward is not {kind}")
        G = self.num_generations if self.model.training else self.num_generations_eval
        groups = rewards.masked_fill(columns.isnan().all(1), torch.nan).view(-1, G)
        judged = groups[~groups.isnan().all(1)]
        self._log_metric("all_fail", (judged.nan_to_num() <= 0).all(1).float().mean().item())
        if self.variant == "forking":
            groups[groups.isnan().any(1)] = torch.nan
        self.rewards = groups.view(-1).split(len(prompts))[self.accelerator.process_index].split(G)
        return columns

    def _generate_and_score_completions(self, inputs: list) -> dict:
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:  # an evaluation has no update
            groups = [p for p, rewards in enumerate(self.rewards) if not rewards.isnan().all()]
            # One is made after the other, because the probabilities of a group can be large.
            rollouts = (self.group_rollout(batch, p) for p in groups)
            if self.variant == "forking" and groups:  # it has one threshold for the batch
                rollouts = [joined([*rollouts])]
            trained = [with_advantages(rollout, VARIANTS[self.variant]).A for rollout in rollouts]
            A = batch["advantages"] = torch.zeros_like(batch["completion_ids"], dtype=torch.float)
            judged = ~torch.cat(self.rewards).isnan()  # (B,); A is (B, T)
            A[judged] = torch.cat([A[:0], *(each.flatten(0, 1) for each in trained)])
        return batch

    @torch.no_grad()
    def group_rollout(self, batch: dict, p: int) -> Rollout:
        """Group p of TRL's batch, which has G rows, as a Rollout with P = 1.

        Some variants read more than rewards, tokens and mask, and for them one forward pass is
        made: for `compensation` it gives the log-probabilities, for `forking` and `nthr` the
        probabilities (G, T, V) and the hidden vectors (G, T, D). Elsewhere these are None.
        Rows whose reward is NaN are left out, and G becomes smaller.
        """
        rewards = self.rewards[p]
        judged = rewards.isfinite()
        rows = p * len(rewards) + judged.nonzero()[:, 0]
        tokens = batch["completion_ids"][rows]
        T = tokens.size(1)
        mask = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()[rows]
        ids = torch.cat([batch["prompt_ids"][rows], tokens], dim=1)  # (G, Lp + T)
        seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)[rows]
        logprobs = probs = hidden = None
        if self.variant == "compensation":
            logprobs = self._get_per_token_logps_and_entropies(self.model, ids, seen, T)[0][None]
        if self.variant in ("forking", "nthr"):
            keep = {"logits_to_keep": T + 1, "output_hidden_states": True}
            out = self.model(ids, attention_mask=seen, **keep)
            # The logits at t - 1 score token t.
            probs = (out.logits[:, :-1].float() / self.temperature).softmax(-1)[None]
            hidden = out.hidden_states[-1][:, -T - 1 : -1].float()[None]
        return Rollout(tokens[None], mask[None], rewards[judged][None], logprobs, probs, hidden)


def joined(rollouts: list[Rollout]) -> Rollout:
    """One rollout of several, with tokens, mask, rewards and probabilities."""
    names = ("tokens", "mask", "rewards", "probs")
    tokens, mask, rewards, probs = (torch.cat([vars(x)[n] for x in rollouts]) for n in names)
    return Rollout(tokens, mask, rewards, None, probs, None)
