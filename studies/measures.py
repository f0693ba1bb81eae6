"""How good a gradient is: the arithmetic of studies.gradients, functions of matrices."""

import numpy as np
import torch


def jackknife(values: torch.Tensor, K: int) -> float:
    """The error of values[0], from what replicates gives.

    The root of the sum over both halves of (K - 1) / K sum_i (x_i - mean x)^2, x_i without i.
    """
    halves = (values[1 : 1 + K], values[1 + K :])
    return sum((len(x) - 1) * x.var(correction=0) for x in halves).sqrt().item()


def replicates(G: torch.Tensor, U: torch.Tensor) -> dict[str, torch.Tensor]:
    """cosine, mean_cosine and snr of G (K, N) and U (K', N): name -> (1 + K + K').

    The first is that of all rollouts; then each of half A is left out; then each of half B.
    """
    K, Ku = len(G), len(U)
    a = torch.cat([torch.ones(1, K), 1 - torch.eye(K), torch.ones(Ku, K)]).double()  # 0: left out
    b = torch.cat([torch.ones(1 + K, Ku), 1 - torch.eye(Ku)]).double()
    n = a.sum(1)  # of g, (1 + K + K',)
    k = b.sum(1)
    both = torch.cat([G, U]).double()
    products = both @ both.T
    GG, GU, UU = products[:K, :K], products[:K, K:], products[K:, K:]
    size = a @ GG.diag() / n  # mean |g|^2
    M = (((a @ GG) * a).sum(1) / n - size) / (n - 1)
    V = (((b @ UU) * b).sum(1) / k - b @ UU.diag() / k) / (k - 1)
    M, V = (x if x[0] > 3 * jackknife(x, K) else x * torch.nan for x in (M, V))
    lengths = GG.diag().sqrt()[:, None]
    cosines = (GU / lengths).nan_to_num(0.0)  # <g, u> / |g|; 0 / 0 counts 0
    cosine = ((a @ GU) * b).sum(1) / (n * k) / (M * V).sqrt()
    mean_cosine = ((a @ cosines) * b).sum(1) / (n * k) / V.sqrt()
    s = cosine**2 * M / size
    return {"cosine": cosine, "mean_cosine": mean_cosine, "snr": s / (1 - s)}


def measures(G: torch.Tensor, U: torch.Tensor, reference: dict) -> dict[str, float]:
    """cosine, mean_cosine, snr, ln_relative of G (K, N) and U (K', N); and name_error of each.

    ln_relative: the logarithm of snr over that of reference, the replicates of grpo. Both have the
    same rollouts, so its error is that of a paired difference.
    """
    found = replicates(G, U)
    found["ln_relative"] = (found["snr"] / reference["snr"]).log()
    errors = {f"{name}_error": jackknife(x, len(G)) for name, x in found.items()}
    return {name: x[0].item() for name, x in found.items()} | errors


def resampled(values: list[float], errors: list[float]) -> tuple[float, float, float]:
    """Mean over base models, and its 95 % interval by resampling them. NaN are left out.

    Of one base model: its value, and two of its errors to each side.
    """
    if len(values) == 1:
        return values[0], values[0] - 2 * errors[0], values[0] + 2 * errors[0]
    found = [x for x in values if x == x] or [np.nan]
    means = np.random.default_rng(0).choice(found, (10_000, len(found))).mean(1)
    return np.mean(found), *np.quantile(means, [0.025, 0.975])
