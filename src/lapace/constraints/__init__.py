"""Constraints on counterfactuals: one language, exact checks, exact projection, and proofs.

```
language    what a constraint says: small frozen values that print as the text they are read from
parser      text and TOML files to values
logic       bound constraints as formulas over cells, in three-valued logic
binding     from values to formulas, against a schema
program     the nearest feasible row, or the proof that there is none (HiGHS)
projection  cheap vectorised repairs first, programs for what is left
penalty     the differentiable g of the latent correction (torch)
system      all of it behind one value
relaxation  how far a constraint would have to be relaxed to admit a row, in words
```
"""

from lapace.constraints.language import (
    Absolute,
    Category,
    ChangeLimit,
    Changes,
    Comparison,
    Conditional,
    Constraint,
    Custom,
    Linear,
    Membership,
    Shorthand,
    Term,
    Transition,
    decreasing,
    fixed,
    increasing,
    noted,
)
from lapace.constraints.logic import Rows
from lapace.constraints.parser import (
    from_toml,
    parse,
    parse_all,
    read_file,
    to_toml,
    write_file,
)
from lapace.constraints.projection import Domains, Projection
from lapace.constraints.system import System

__all__ = [
    "Absolute",
    "Category",
    "ChangeLimit",
    "Changes",
    "Comparison",
    "Conditional",
    "Constraint",
    "Custom",
    "Domains",
    "Linear",
    "Membership",
    "Projection",
    "Rows",
    "Shorthand",
    "System",
    "Term",
    "Transition",
    "decreasing",
    "fixed",
    "from_toml",
    "increasing",
    "noted",
    "parse",
    "parse_all",
    "read_file",
    "to_toml",
    "write_file",
]
