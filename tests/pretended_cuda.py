"""A CUDA device that is only pretended: whole readers run on it, on a machine without a GPU.

    with pretended_cuda(memory=16 * 2**30) as device:
        reader = CausalReader(spec)
        device.reset()
        reader.read(prompts)
    assert device.synchronisations <= steps

Its tensors say ``cuda:0`` and hold a tensor of the CPU, on which the arithmetic is done. What CUDA refuses is
refused: tensors of two devices in one operation, ``numpy()`` of a device's tensor, more bytes than the device
has. What costs time on a GPU is counted: kernel launches, copies from the host, synchronisations (everything
that makes the host wait for a value), with the lines of the engine that cause them; and live bytes.

What it cannot show: which kernel a GPU chooses and how that rounds, what kernels themselves refuse
(alignment, widths of heads), memory inside a kernel and between the allocator's blocks, graphs, several GPUs.
"""

from __future__ import annotations

import contextlib
import traceback
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from transformers import PreTrainedModel

from engine.machine import model_files

CUDA = torch.device("cuda", 0)
_aten = torch.ops.aten
# Indices may lie on either device; one on the host is copied first.
_INDEXING = {
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten.index_put.default,
    _aten._index_put_impl_.default,
}
_MIXED = {*_INDEXING, _aten._to_copy.default, _aten.copy_.default}
# Operations that look at a tensor in another way, and launch nothing. By what their names hold.
_VIEWS = (
    *("view", "slice", "select", "transpose", "permute", "expand", "squeeze", "detach"),
    *("alias", "as_strided", "aten.t.", "split", "unbind", "lift_fresh", "unfold", "movedim"),
    *("sym_", "is_", "stride", "size", "narrow", "unflatten", "empty"),
)
# Their result is a value, or its size depends on values.
_BY_VALUE = (
    *("_local_scalar_dense", "aten.item", "is_nonzero", "aten.equal"),
    *("nonzero", "masked_select", "unique", "repeat_interleave.Tensor"),
)


@dataclass
class Device:
    """What was done on the device since ``reset``.

    Attributes:
        total: bytes of the device.
        others: bytes of these that other processes hold.
        launches, copies, synchronisations: counts; copies are those from the host.
        sites: where in the engine copies and synchronisations come from: (kind, file and line) to a count.
        allocated, peak: bytes of live tensors, now and at most.
    """

    total: int
    others: int = 0
    launches: int = 0
    copies: int = 0
    synchronisations: int = 0
    sites: Counter[tuple[str, str]] = field(default_factory=Counter)
    allocated: int = 0
    peak: int = 0
    share: float = 1.0
    _held: dict[int, tuple[int, int]] = field(default_factory=dict)

    def reset(self) -> None:
        """Begin to count anew; the peak begins at what is live."""
        self.launches = self.copies = self.synchronisations = 0
        self.sites.clear()
        self.peak = self.allocated

    def copied(self) -> None:
        self.copies += 1
        self.sites["copy", _site()] += 1

    def waited(self) -> None:
        self.synchronisations += 1
        self.sites["synchronisation", _site()] += 1

    def hold(self, storage: torch.UntypedStorage) -> int:
        """Count a storage's bytes while tensors live that look at it.

        Raises:
            torch.OutOfMemoryError: the device has no room for them.
        """
        key = storage._cdata
        holders, size = self._held.get(key, (0, storage.nbytes()))
        if not holders:
            room = min(self.total - self.others, int(self.share * self.total))
            if self.allocated + size > room:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
        self._held[key] = holders + 1, size
        return key

    def release(self, key: int) -> None:
        holders, size = self._held[key]
        if holders > 1:
            self._held[key] = holders - 1, size
        else:
            del self._held[key]
            self.allocated -= size


_device: Device | None = None


def _current() -> Device:
    assert _device is not None
    return _device


def _site() -> str:
    for frame in reversed(traceback.extract_stack()):
        if "/engine/" in frame.filename:
            return f"{frame.filename.split('/engine/')[-1]}:{frame.lineno}"
    return ""


class _Tensor(torch.Tensor):
    """Says that it is on ``cuda:0``, and holds a tensor of the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _Tensor:
        # For C++ it lies on the device "meta", which every build of torch has.
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="meta",
        )
        device = _current()
        made.inner = inner
        weakref.finalize(made, device.release, device.hold(inner.untyped_storage()))
        return made

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"cuda({self.inner!r})"

    def tolist(self) -> Any:
        _current().waited()
        return self.inner.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, dict(kwargs or {}))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One operation, as C++ hands it over."""
    if func is _aten._has_compatible_shallow_copy_type.default:
        return not any(isinstance(a, _Tensor) for a in args)
    if func.name().startswith("aten::to"):  # in inference mode compositions arrive whole
        return _moved(func, args, kwargs)
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [leaf for leaf in leaves if isinstance(leaf, _Tensor)]
    device, name = _current(), str(func)
    asked = kwargs.get("device")
    where = None if asked is None else torch.device(asked).type
    if where == "meta":
        if not ours:
            return func(*args, **kwargs)
        where = "cuda"
    if ours and func not in _MIXED and any(t.dim() and not isinstance(t, _Tensor) for t in leaves):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"cuda:0 and cpu! ({name}, {_site()})"
        )
    if func in _INDEXING and ours:
        if len(ours) < len(leaves):
            device.copied()
        # What is true is looked for; what is only taken from a tensor of truths is not.
        if any(t.dtype == torch.bool for t in tree_leaves(args[1]) if isinstance(t, _Tensor)):
            device.waited()
    if ours and any(asked_for in name for asked_for in _BY_VALUE):
        device.waited()
    if asked is not None:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    target = bool(ours) if where is None else where == "cuda"
    if func is _aten._to_copy.default:
        _count_copy(args[0], to_cuda=target)
    elif func is _aten.copy_.default:
        target = isinstance(args[0], _Tensor)
        _count_copy(args[1], to_cuda=target)
    if target and not any(view in name for view in _VIEWS):
        device.launches += 1
    own_args, own_kwargs = tree_map(_inner, args), tree_map(_inner, kwargs)
    made = func(*own_args, **own_kwargs)
    if func._schema.is_mutable:
        if "out" in kwargs:
            return kwargs["out"]
        if isinstance(made, torch.Tensor) and made is own_args[0]:
            return args[0]
    if func is _aten._to_copy.default and made is own_args[0]:
        made = made.clone()
    return tree_map(_wrapped, made) if target else made


def _moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.to`` in one of its forms: to a device, a precision, or as another tensor."""
    tensor, *others = args
    from_cuda = isinstance(tensor, _Tensor)
    devices = [a for a in (*others, *kwargs.values()) if isinstance(a, torch.device)]
    like = [a for a in others if isinstance(a, torch.Tensor)]
    if devices:
        to_cuda = devices[0].type == "cuda"
    else:
        to_cuda = isinstance(like[0], _Tensor) if like else from_cuda
    _count_copy(tensor, to_cuda=to_cuda)

    def on_cpu(a: Any) -> Any:
        return torch.device("cpu") if isinstance(a, torch.device) else _inner(a)

    made = func(*map(on_cpu, args), **{name: on_cpu(value) for name, value in kwargs.items()})
    if not to_cuda:
        return made
    if from_cuda and made is _inner(tensor):
        return tensor
    _current().launches += from_cuda
    return _Tensor(made if from_cuda or made is not tensor else made.clone())


def _count_copy(tensor: torch.Tensor, *, to_cuda: bool) -> None:
    """Count where a tensor goes; one without numbers goes nowhere."""
    from_cuda = isinstance(tensor, _Tensor)
    if not tensor.numel():
        return
    if to_cuda and not from_cuda:
        _current().copied()
    if from_cuda and not to_cuda:
        _current().waited()


def _inner(a: Any) -> Any:
    return a.inner if isinstance(a, _Tensor) else a


def _wrapped(a: Any) -> Any:
    return _Tensor(a) if isinstance(a, torch.Tensor) else a


class _Operations(TorchDispatchMode):
    """Catches what has no tensor of the device among its arguments, as ``torch.zeros(device=…)``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, dict(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Does what would otherwise be decided in C++, where the tensors are of the device "meta"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        args = tuple(map(_numbered, args))
        kwargs = {name: _numbered(value) for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.pin_memory:
            return args[0]
        first = args[0] if args else None
        if func is torch.Tensor.cuda:
            return first.to(CUDA)
        if not isinstance(first, _Tensor):
            return func(*args, **kwargs)
        if func in (torch.Tensor.tolist, torch.Tensor.numpy):
            return getattr(first, func.__name__)()
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention(func, args, kwargs)
        if func is torch.Tensor.__getitem__:  # C++ would make a list's tensor on the device "meta"
            return func(first, _with_tensors(args[1]))
        if func is torch.Tensor.__setitem__:
            return _set(first, args[1], args[2])
        return func(*args, **kwargs)


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A result with the strides of CUDA's kernels, which write (texts, tokens, heads, width)."""
    device = _current()
    made = func(*args, **kwargs)
    launches = device.launches
    made = made.transpose(1, 2).contiguous().transpose(1, 2)
    device.launches = launches
    return made


def _with_tensors(index: Any) -> Any:
    """An index with tensors of the host for its lists."""
    if isinstance(index, tuple):
        return tuple(map(_with_tensors, index))
    return torch.tensor(index) if isinstance(index, list) else index


def _set(tensor: _Tensor, index: Any, value: Any) -> None:
    index = _with_tensors(index)
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, torch.Tensor) for part in parts):
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=tensor.dtype, device=CUDA)
        whole = [None if part == slice(None) else part for part in _plain(parts)]
        _aten.index_put_.default(tensor, whole, value)
        return
    view = tensor[index]
    if isinstance(value, torch.Tensor):
        view.copy_(value)
    else:
        view.fill_(value)


def _plain(parts: tuple[Any, ...]) -> list[Any]:
    """Parts of an index, with whole dimensions told from tensors without comparing these."""
    assert all(isinstance(part, torch.Tensor) or part == slice(None) for part in parts)
    return [None if isinstance(part, slice) else part for part in parts]


def _numbered(a: Any) -> Any:
    """A device "cuda" by its number, which a build without CUDA cannot tell."""
    named = isinstance(a, str) and (a == "cuda" or a.startswith("cuda:"))
    return CUDA if named or (isinstance(a, torch.device) and a.type == "cuda") else a


@contextlib.contextmanager
def pretended_cuda(
    memory: int = 80 * 2**30, *, others: int = 0, bf16: bool = True
) -> Iterator[Device]:
    """A machine with one such device, as long as the context lasts.

    Args:
        memory: bytes of it.
        others: bytes that other processes hold on it.
        bf16: whether it has arithmetic of that precision; without, it is a T4's generation.
    """
    global _device
    _device = device = Device(memory, others)
    major = 8 if bf16 else 7
    about = SimpleNamespace(
        total_memory=memory, name="pretended", major=major, minor=5 * (major == 7)
    )

    def set_share(share: float, *_: Any) -> None:
        device.share = share

    def forget_peak(*_: Any) -> None:
        device.peak = device.allocated

    cuda = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_: about,
        "get_device_name": lambda *_: about.name,
        "get_device_capability": lambda *_: (about.major, about.minor),
        "is_bf16_supported": lambda *_, **__: bf16,
        "memory_allocated": lambda *_: device.allocated,
        "memory_reserved": lambda *_: device.allocated,
        "max_memory_allocated": lambda *_: device.peak,
        "reset_peak_memory_stats": forget_peak,
        "mem_get_info": lambda *_: (memory - others - device.allocated, memory),
        "set_per_process_memory_fraction": set_share,
        "empty_cache": lambda: None,
        "synchronize": lambda *_: device.waited(),
    }
    load = PreTrainedModel.from_pretrained.__func__

    def loaded(cls: type, *args: Any, device_map: Any = None, **kwargs: Any) -> Any:
        # Loading takes ways through torch that are not pretended; its result is moved.
        with _disable_current_modes(), _pop_mode_temporarily(), torch.inference_mode(False):
            made = load(cls, *args, **kwargs)
        if device_map is None:
            return made
        model, *rest = made if isinstance(made, tuple) else (made,)
        model = model.to(device_map[""])
        return (model, *rest) if rest else model

    lifted = torch._C._only_lift_cpu_tensors()
    overwritten = torch.__future__.get_overwrite_module_params_on_conversion()
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                mock.patch.object(PreTrainedModel, "from_pretrained", classmethod(loaded))
            )
            # Models are moved in place: none is shared between this device and the CPU.
            stack.enter_context(
                mock.patch.object(model_files, "_IN_USE", weakref.WeakValueDictionary())
            )
            for name, value in cuda.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, value))
            stack.enter_context(torch.inference_mode())
            stack.enter_context(_Functions())
            stack.enter_context(_Operations())
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(lifted)
        torch.__future__.set_overwrite_module_params_on_conversion(overwritten)
        _device = None
