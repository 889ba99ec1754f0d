"""Whether a chat template wants message contents as part lists or as text, read off its syntax tree as vLLM does.

A template that loops over the content of a message gets the list. Like vLLM's, the search knows names, not scopes.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from jinja2 import nodes


def wants_parts(tree: nodes.Template) -> bool:
    """Whether the template loops over message contents.

    vLLM gives up, and joins, at the first messages or content that is bound to several names at once.
    """
    try:
        messages = _message_names(tree)
        return any(_target(loop) for loop in _content_loops(tree, messages))
    except _SeveralNames:
        return False


class _SeveralNames(Exception):
    """A loop or an assignment unpacks what the search follows."""


def _message_names(tree: nodes.Template) -> AbstractSet[str]:
    """Names a loop gives to a single message."""
    lists = _aliases(tree, "messages")
    loops = (loop for loop in tree.find_all(nodes.For) if _reads(loop.iter, lists))
    return {_target(loop) for loop in loops}


def _aliases(tree: nodes.Template, name: str) -> AbstractSet[str]:
    """`name` and every name assigned from it, whole, sliced or filtered."""
    known = {name}
    pending = [name]
    while pending:
        current = pending.pop()
        assigned = {_name(made.target) for made in tree.find_all(nodes.Assign) if _reads(made.node, {current})}
        pending += sorted(assigned - known)
        known |= assigned
    return known


def _content_loops(tree: nodes.Template, messages: AbstractSet[str]) -> Iterator[nodes.For]:
    macros = list(tree.find_all(nodes.Macro))
    in_macros = {id(loop) for macro in macros for loop in macro.find_all(nodes.For)}
    by_loop = _parameters_by_loop(tree, macros, messages)
    for loop in tree.find_all(nodes.For):
        name = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        named = name in by_loop.get(id(loop), ()) or (name == "content" and id(loop) not in in_macros)
        if named or _reads_content(loop.iter, messages):
            yield loop


def _parameters_by_loop(
    tree: nodes.Template, macros: Iterable[nodes.Macro], messages: AbstractSet[str]
) -> dict[int, AbstractSet[str]]:
    """For every loop in a macro, the macro's parameters that are called with a content."""
    by_loop: dict[int, AbstractSet[str]] = {}
    for macro in macros:
        names = [argument.name for argument in macro.args]
        calls = (call for call in tree.find_all(nodes.Call) if _is_name(call.node, {macro.name}))
        fed = {name for call in calls for name in _fed_parameters(call, names, messages)}
        if fed:
            by_loop |= {id(loop): fed for loop in macro.find_all(nodes.For)}
    return by_loop


def _fed_parameters(call: nodes.Call, names: list[str], messages: AbstractSet[str]) -> Iterator[str]:
    for name, argument in zip(names, call.args, strict=False):
        if _reads_content(argument, messages):
            yield name
    for keyword in call.kwargs:
        if keyword.key in names and _reads_content(keyword.value, messages):
            yield keyword.key


def _reads(node: nodes.Node, names: AbstractSet[str]) -> bool:
    bare = _bare(node)
    return _is_name(bare, names) and isinstance(bare, nodes.Name) and bare.ctx == "load"


def _reads_content(node: nodes.Node, messages: AbstractSet[str]) -> bool:
    """Whether it is `message.content` or `message['content']`, sliced or filtered."""
    bare = _bare(node)
    if isinstance(bare, nodes.Getattr):
        return bare.attr == "content" and _is_name(bare.node, messages)
    if isinstance(bare, nodes.Getitem) and isinstance(bare.arg, nodes.Const):
        return bare.arg.value == "content" and _is_name(bare.node, messages)
    return False


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """The node under filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    return node


def _is_name(node: nodes.Node | None, names: AbstractSet[str]) -> bool:
    return isinstance(node, nodes.Name) and node.name in names


def _target(loop: nodes.For) -> str:
    return _name(loop.target)


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _SeveralNames
    return target.name
