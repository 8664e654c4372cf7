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
MODELS = frozenset(
    {"model", "net", "network", "student", "mlp", "vit", "resnet", "resmlp", "bp_model", "model_bp"}
)


# -- FA003 ----------------------------------------------------------------------------------------


def half_precision(source: Source) -> Iterator[ast.AST]:
    """Gradients measured under float16 autocast, or from what was computed under it.

    >>> text = "with torch.autocast('cuda'):\\n  g = torch.autograd.grad(model(x).sum(), h)"
    >>> [node.lineno for node in half_precision(Source(text))]
    [1]
    """
    derived = _derived_names(source)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            casts = (i.context_expr for i in node.items if _casts_half(source, i.context_expr))
            for cast in casts:
                later = derived.get(source.scope_of(node), [])
                if _measures(source, node.body) or _measured_after(node, later):
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


def _derived_names(source: Source) -> dict[Scope, list[tuple[int, frozenset[str]]]]:
    """For every scope the (line, names) of what it asks autograd to derive, without a scaler."""
    found: dict[Scope, list[tuple[int, frozenset[str]]]] = {}
    for call in source.calls(source.tree):
        names = frozenset(identifiers(derived)) if (derived := _derived(source, call)) else None
        if names and "scale" not in names:
            found.setdefault(source.scope_of(call), []).append((call.lineno, names))
    return found


def _derived(source: Source, call: ast.Call) -> ast.expr | None:
    """What a call asks autograd to derive, where somebody then looks at the gradients."""
    if is_autograd(source, call):
        return call.args[0] if call.args else None
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return None
    nodes = list(own_nodes(source.scope_of(call)))
    if any(isinstance(node, ast.Call) and _name_of(node) == "step" for node in nodes):
        return None  # training, which a scaler keeps from underflow
    looked_at = any(
        isinstance(node, ast.Attribute)
        and node.attr == "grad"
        and node.lineno > call.lineno
        and _is_read(source, node)
        for node in nodes
    )
    return call.func.value if looked_at else None


def _measured_after(
    block: ast.With | ast.AsyncWith, later: list[tuple[int, frozenset[str]]]
) -> bool:
    """Whether what a block computed is derived further down in the same function."""
    made = {
        node.id
        for node in ast.walk(block)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return any(line > block.lineno and made & names for line, names in later)


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
            if _mean_of_comprehension(source, node):
                yield node
            elif isinstance(node, ast.For):
                yield from _running_sums(source, node)
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


def _running_sums(source: Source, loop: ast.For) -> list[ast.AugAssign]:
    """``total += cosine`` in a loop over layers that keeps nothing else of the cosine."""
    sums = [
        node
        for node in loop.body
        if isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and any(is_cosine(source, part) for part in ast.walk(node.value))
    ]
    return sums if sums and _over_layers(loop.iter) and not _keeps(source, loop) else []


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
    lists = [
        node
        for node in own_nodes(scope)
        if isinstance(node, ast.Assign) and _layer_cosines(source, node.value)
    ]
    reads = _reads(scope) if lists else {}
    for node in lists:
        names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        used = [read for name in names for read in reads.get(name, ())]
        if len(names) == len(node.targets) and used and _all_in_means(source, used):
            yield node


def _reads(scope: Scope) -> dict[str, list[ast.AST]]:
    """Where a scope, and what is defined in it, reads each name."""
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.setdefault(node.id, []).append(node)
    return found


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
    callers, makers = _callers(functions), _makers(source)
    for node in functions:
        measures = _derives(source, node) and _runs_model(node, makers) and not _trains(node)
        if measures and not _is_called_by(node.name, callers, ready):
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


def _runs_model(node: ast.AST, makers: frozenset[str]) -> bool:
    """Whether a function calls something named like a model, and not what makes one."""
    called = (_name_of(part) for part in own_nodes(node) if isinstance(part, ast.Call))
    return any(name in MODELS and name not in makers for name in called)


def _makers(source: Source) -> frozenset[str]:
    """The file's own functions and classes, and what it imports: no model has such a name."""
    nodes = ast.walk(source.tree)
    own = {node.name for node in nodes if isinstance(node, Function | ast.ClassDef)}
    return frozenset(own | source.aliases.keys())


def _trains(node: ast.AST) -> bool:
    """Whether a function also steps an optimiser: then training mode is what it wants."""
    calls = (part for part in own_nodes(node) if isinstance(part, ast.Call))
    return any(_name_of(call) in ("step", "backward") for call in calls)


def _callers(functions: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> dict[str, set[str]]:
    """Function name -> the functions that call something of this name."""
    known = {function.name for function in functions}
    found: dict[str, set[str]] = {}
    for function in functions:
        for part in ast.walk(function):
            if isinstance(part, ast.Call) and _name_of(part) in known:
                found.setdefault(_name_of(part), set()).add(function.name)
    return found


def _is_called_by(name: str, callers: dict[str, set[str]], ready: set[str]) -> bool:
    """Whether a function is one of these, or called by one through any number of others."""
    seen, waiting = {name}, [name]
    while waiting:
        here = waiting.pop()
        if here in ready:
            return True
        more = callers.get(here, set()) - seen
        seen |= more
        waiting += more
    return False
