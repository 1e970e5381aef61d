"""U_k(i) = "x_i is in S^{k-1} or in the chosen D_k" as linear expressions (MONeT, equation 4.12).

Compact, the default: for every i that some D_kl has,

    u_ki >= s_i^{k-1},    u_ki >= sum_{l: i in D_kl} dhat_kl,    U_k(i) = u_ki

and U_k(i) = s_i^{k-1} for all others, and for all in the forward pass. With `literal_products`, as MONeT has it:

    alpha_kli >= dhat_kl + s_i^{k-1} - 1,    alpha_kli <= dhat_kl,    alpha_kli <= s_i^{k-1}       for i not in D_kl
    U_k(i) = sum_{l: i in D_kl} dhat_kl + sum_{l: i not in D_kl} alpha_kli

Both have the same 0-1 solutions because exactly one dhat_kl is 1 and memory rows only bound sums of U from above.
"""

from __future__ import annotations

from treadle.planner.passes.memory.formulation.tables import Formulation, Terms
from treadle.planner.solver import Var


def add_union(f: Formulation, k: int) -> None:
    """Fill `f.u[k]`."""
    if not f.again(k):
        f.u[k] = [[] if left is None else [(left, 1)] for left in f.s[k - 1]]
        return
    impls = f.problem.bwd[f.stages - k].impls
    needs = {way: frozenset(impls[way].needs) for way in f.dhat[k]}
    for i, left in enumerate(f.s[k - 1]):
        choosing = [var for way, var in f.dhat[k].items() if i in needs[way]]
        if len(choosing) == len(f.dhat[k]):
            f.u[k][i] = [(f.one, 1)]
        elif f.switches.literal_products:
            others = [var for way, var in f.dhat[k].items() if i not in needs[way]]
            products = [] if left is None else [_product(f, chosen, left) for chosen in others]
            f.u[k][i] = [(var, 1) for var in choosing + products]
        elif not choosing:
            f.u[k][i] = [] if left is None else [(left, 1)]
        else:
            f.u[k][i] = _either(f, choosing, left)


def _either(f: Formulation, choosing: list[Var], left: Var | None) -> Terms:
    u = f.auxiliary()
    if left is not None:
        f.at_most(left, [u])
    f.model.add_linear([(u, 1), *((var, -1) for var in choosing)], lb=0)
    return [(u, 1)]


def _product(f: Formulation, a: Var, b: Var) -> Var:
    product = f.model.bool_var()
    f.model.add_linear([(product, 1), (a, -1), (b, -1)], lb=-1)
    f.at_most(product, [a])
    f.at_most(product, [b])
    return product
