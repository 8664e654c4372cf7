"""FA003, FA005 and FA006: how a function measures gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from faudit.lint.gradients import (
    about_gradients,
    gradient_names,
    is_autograd,
    is_cosine,
)
from faudit.lint.source import (
    Function,
    Scope,
    Source,
    identifiers,
    keyword,
    mentions,
    open_ended,
    own_nodes,
    words,
)

AUTOCASTS = frozenset(
    {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"}
)
MEANS = frozenset({"mean", "sum", "fmean", "average", "nanmean"})
LAYERED = frozenset(
    {"layer", "layers", "block", "blocks", "credit", "credits", "grad", "grads", "gradients"}
    | {"gradient", "depth", "states", "hiddens", "hidden", "params", "parameters", "l"}
)
KEEPERS = frozenset({"append", "extend", "add", "print", "log", "write", "info", "update"})
BATCHED = frozenset({"loader", "batch", "batches", "dataset", "epoch", "epochs", "seed", "seeds"})
MODELS = frozenset({"model", "net", "network", "student", "mlp", "vit", "resnet", "resmlp"})


# -- FA003 ----------------------------------------------------------------------------------------


def half_precision(source: Source) -> Iterator[ast.AST]:
    """Gradients measured under float16 autocast, or from what was computed under it.

    >>> text = "with torch.autocast('cuda'):\\n  g = torch.autograd.grad(model(x).sum(), h)"
    >>> [node.lineno for node in half_precision(Source(text))]
    [1]
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            casts = (i.context_expr for i in node.items if _casts_half(source, i.context_expr))
            for cast in casts:
                if _measures(source, node.body) or _measured_after(source, node):
                    yield cast
        elif isinstance(node, Function):
            for decorator in node.decorator_list:
                if _casts_half(source, decorator) and _measures(source, node.body):
                    yield decorator


def _casts_half(source: Source, node: ast.AST) -> bool:
    name = source.called(node)
    if name not in AUTOCASTS or not isinstance(node, ast.Call) or open_ended(node):
        return False
    if _is_false(_argument(node, "enabled", 0 if ".amp." in name else 2)):
        return False
    dtype = _argument(node, "dtype", 1)
    if dtype is not None:
        return source.full_name(dtype) in ("torch.float16", "torch.half")
    device = _argument(node, "device_type", 0)
    on_cpu = isinstance(device, ast.Constant) and device.value == "cpu"
    return name != "torch.cpu.amp.autocast" and not on_cpu


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    written = keyword(call, name)
    if written is None and len(call.args) > position:
        return call.args[position]
    return written


def _is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _measures(source: Source, body: list[ast.stmt]) -> bool:
    """Whether statements ask for gradients or read them; ``backward()`` alone is training."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    return any(
        is_autograd(source, node)
        or (is_cosine(source, node) and about_gradients(node))
        or (isinstance(node, ast.Attribute) and node.attr == "grad" and _is_read(source, node))
        for node in nodes
    )


def _is_read(source: Source, node: ast.Attribute) -> bool:
    name = source.full_name(node)
    return isinstance(node.ctx, ast.Load) and not name.endswith("autograd.grad")


def _measured_after(source: Source, block: ast.With | ast.AsyncWith) -> bool:
    """Whether what a block computed is derived in the same function, without a scaler."""
    made = {
        node.id
        for node in ast.walk(block)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return any(
        is_autograd(source, call)
        and isinstance(call, ast.Call)
        and call.args
        and made & set(identifiers(call.args[0]))
        and "scale" not in set(identifiers(call.args[0]))
        for call in own_nodes(source.scope_of(block))
        if getattr(call, "lineno", 0) > block.lineno
    )


# -- FA005 ----------------------------------------------------------------------------------------


def lost_layers(source: Source) -> Iterator[ast.AST]:
    """A mean taken over layers' cosines where no single one is kept.

    >>> text = "gamma = sum(cosine(a, g) for a, g in zip(credits, grads)) / len(grads)"
    >>> [node.lineno for node in lost_layers(Source(text))]
    [1]
    >>> list(lost_layers(Source("per_layer = [cosine(a, g) for a, g in zip(credits, grads)]")))
    []
    """
    for scope in source.scopes():
        for node in own_nodes(scope):
            if _mean_of_comprehension(source, node) or _running_sum(source, node):
                yield node
        yield from _lists_only_averaged(source, scope)


def _mean_of_comprehension(source: Source, node: ast.AST) -> bool:
    averaged = _averaged(source, node)
    return averaged is not None and any(_layer_cosines(source, p) for p in _unstacked(averaged))


def _averaged(source: Source, node: ast.AST) -> ast.expr | None:
    """What a call takes the mean (or the sum) of."""
    if not isinstance(node, ast.Call):
        return None
    if _name_of(node) not in MEANS:
        return None
    if node.args:
        return node.args[0]
    return node.func.value if isinstance(node.func, ast.Attribute) else None


def _unstacked(node: ast.expr) -> Iterator[ast.expr]:
    """An expression, and what it is a stack, a tensor or an array of."""
    while True:
        yield node
        if not isinstance(node, ast.Call) or not node.args:
            return
        node = node.args[0]


def _layer_cosines(source: Source, node: ast.AST) -> bool:
    """Whether a node is a comprehension of one cosine per layer."""
    if not isinstance(node, ast.ListComp | ast.GeneratorExp):
        return False
    one = any(is_cosine(source, part) for part in ast.walk(node.elt))
    return one and any(_over_layers(g.iter) for g in node.generators)


def _over_layers(node: ast.expr) -> bool:
    return mentions(node, LAYERED) and not mentions(node, BATCHED)


def _running_sum(source: Source, node: ast.AST) -> bool:
    """``total += cosine`` in a loop over layers that keeps nothing else of the cosine."""
    if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add):
        return False
    if not any(is_cosine(source, part) for part in ast.walk(node.value)):
        return False
    loop = source.parents[node]
    return isinstance(loop, ast.For) and _over_layers(loop.iter) and not _keeps(source, loop)


def _keeps(source: Source, loop: ast.For) -> bool:
    """Whether a loop stores, prints or yields something made of a cosine."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign | ast.Yield | ast.NamedExpr):
            kept = [node.value] if node.value is not None else []
        else:
            kept = node.args if isinstance(node, ast.Call) and _name_of(node) in KEEPERS else []
        if any(is_cosine(source, part) for value in kept for part in ast.walk(value)):
            return True
    return False


def _name_of(call: ast.Call) -> str:
    """The last name of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _lists_only_averaged(source: Source, scope: Scope) -> Iterator[ast.AST]:
    """``c = [cosine per layer]`` whose only use is one mean."""
    nodes = list(own_nodes(scope))
    for node in nodes:
        if isinstance(node, ast.Assign) and _layer_cosines(source, node.value):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            used = [n for n in ast.walk(scope) if _reads(n, names)]
            if len(names) == len(node.targets) and used and _all_in_means(source, used):
                yield node


def _reads(node: ast.AST, names: list[str]) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names


def _all_in_means(source: Source, used: list[ast.AST]) -> bool:
    means = [node for node in used if _inside(source, node, MEANS)]
    others = [node for node in used if node not in means]
    return bool(means) and all(_inside(source, node, frozenset({"len"})) for node in others)


def _inside(source: Source, node: ast.AST, names: frozenset[str]) -> bool:
    """Whether a name stands in the expression of a call of one of these functions."""
    above = source.parents.get(node)
    while isinstance(above, ast.expr):
        if isinstance(above, ast.Call) and _name_of(above) in names:
            return True
        above = source.parents.get(above)
    return False


# -- FA006 ----------------------------------------------------------------------------------------


def forgotten_eval(source: Source) -> Iterator[ast.AST]:
    """A function that runs a model and derives by it, where nobody has called ``eval()``.

    >>> text = "def gamma(model, x):\\n  return torch.autograd.grad(model(x).sum(), x)"
    >>> [node.lineno for node in forgotten_eval(Source(text))]
    [1]
    """
    functions = [node for node in ast.walk(source.tree) if isinstance(node, Function)]
    if _sets_mode(source.tree, own=True):
        return
    ready = {node.name for node in functions if _sets_mode(node)}
    calls = _calls_by_name(functions)
    for node in functions:
        measures = _derives(source, node) and _runs_model(node) and not _trains(node)
        if measures and not ({node.name} | _callers(calls, node.name)) & ready:
            yield node


def _sets_mode(node: ast.AST, own: bool = False) -> bool:
    nodes = own_nodes(node) if own else ast.walk(node)
    return any(_is_mode_call(part) for part in nodes)


def _is_mode_call(node: ast.AST) -> bool:
    """``x.eval()``, ``x.train(...)`` with an argument, or a helper named after it."""
    if not isinstance(node, ast.Call):
        return False
    name = _name_of(node)
    if isinstance(node.func, ast.Attribute) and name in ("eval", "train"):
        return bool(node.args) == (name == "train")
    return "evaluating" in words(name) or {"eval", "mode"} <= words(name)


def _derives(source: Source, node: ast.AST) -> bool:
    known = gradient_names(source, node) if isinstance(node, Function) else frozenset()
    return any(
        is_autograd(source, part) or (is_cosine(source, part) and about_gradients(part, known))
        for part in own_nodes(node)
    )


def _runs_model(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Call) and _is_model(part.func) for part in own_nodes(node))


def _is_model(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else ""
    name = node.id if isinstance(node, ast.Name) else name
    return name in MODELS or name.removesuffix("_bp").removeprefix("bp_") in MODELS


def _trains(node: ast.AST) -> bool:
    """Whether a function also steps an optimiser: then training mode is what it wants."""
    calls = (part for part in own_nodes(node) if isinstance(part, ast.Call))
    return any(_name_of(call) in ("step", "backward") for call in calls)


def _calls_by_name(functions: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> dict[str, set[str]]:
    """Function name -> the names of all that functions of this name call."""
    found: dict[str, set[str]] = {}
    for function in functions:
        calls = (part for part in ast.walk(function) if isinstance(part, ast.Call))
        found.setdefault(function.name, set()).update(map(_name_of, calls))
    return found


def _callers(calls: dict[str, set[str]], name: str) -> set[str]:
    """The functions that call one, through any number of others."""
    found: set[str] = set()
    wanted = {name}
    while wanted:
        wanted = {caller for caller, called in calls.items() if called & wanted} - found
        found |= wanted
    return found
