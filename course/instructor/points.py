"""What the points of a part are given for: its functions, and some groups of its tests."""

import re
from collections import namedtuple

from course.blank import Part

# function: of the student. tests: those that have to pass with it. points: of the part's
Group = namedtuple("Group", "points function words tests")
RULE = "above_0_999|nothing_where_nothing"
# Function -> points, words, and which tests. All tests count for each of the other functions, which
# have equal shares of what their file gives, and two files of a part give a half each.
APART = {
    "loss_by_loops": [(1, "the three means", "by_hand"), (1, "the clip", r"formula\[token")],
    "token_weights": [(2, "", "")],
    "policy_loss": [(5, "the clip", "truth"), (1, "means and padding", "by_hand|formula|padding")],
    "update": [
        (2, "a policy that learns", "policy_learns"),
        (3, "without the KL term", "without_a_kl"),
        (2, "the KL term", "with_a_kl"),
        (3, "the metrics", r"by_hand\[(?!.*'kl')"),
    ],
    "nthr": [
        (2, "which tokens are spared", r"\[nthr"),
        (1, "the threshold itself, and eta", "selects_no|algorithm_1"),
    ],
    "verifree_at": [(2, "the advantages", f"^((?!{RULE}).)*$"), (1, "the rule of 0.999", RULE)],
    "verifree": [(2, "the advantages", f"^((?!{RULE}).)*$"), (1, "the rule of 0.999", RULE)],
    "train": [
        (1, "learning rate and optimiser", "learning_rate|one_optimiser"),
        (1, "problems and samples", "step_draws|held_out|seed_decides"),
        (1, "critic and reference policy", "one_critic|critic-mul|kl_term"),
        (1, "culling", "culling"),
        (1, "what reaches the update and the table", "reaches_the|every_25|grpo-mul"),
        (1, "check_finite", "not_finite"),
    ],
}


def groups(part: Part, file: str, tests: list[str]) -> list[Group]:
    """The groups of a file of a part. tests: all that pass with the project's code."""
    found = []
    for name in part.files[file]:
        equal = part.points / len(part.files) / len(part.files[file])
        for points, words, which in APART.get(name, [(equal, "", "")]):
            found.append(Group(points, name, words, [x for x in tests if re.search(which, x)]))
    return found
