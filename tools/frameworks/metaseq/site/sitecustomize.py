"""Patches that metaseq of 2023 needs in Python 3.11 or later with omegaconf 2.3, and without compiled CUDA kernels.

Python imports a module of this name first, so PYTHONPATH has this folder in metaseq's environment. Nothing of metaseq
is changed: what it expects of others is put back.

* Python 3.11 refuses a default that has no hash. metaseq's configurations have such defaults, instances of its own
  dataclasses, and had them before Python looked at hashes.
* metaseq sets omegaconf's `is_primitive_type` for a while, so that a configuration may hold an `argparse.Namespace`.
  The function has had another name since omegaconf 2.1.
* It imports two softmax kernels that nvcc compiles. Without these, PyTorch does what they do.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

_dataclass = dataclasses.dataclass
_KERNELS = "metaseq.modules.megatron.fused_kernels"


def _with_hash(cls: type | None = None, /, **options: Any) -> Any:
    """Make a dataclass; one of metaseq's can be a default of another."""
    if cls is None:
        return lambda cls: _with_hash(cls, **options)
    made: Any = _dataclass(cls, **options)
    if made.__module__.startswith("metaseq.") and made.__hash__ is None:
        made.__hash__ = object.__hash__
    return made


class _Primitive(ModuleType):
    """`omegaconf._utils`, in which the old name stands for the new one."""

    def __getattr__(self, name: str) -> Any:
        if name == "is_primitive_type":
            return self.is_primitive_type_annotation
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("is_primitive_type_annotation" if name == "is_primitive_type" else name, value)


class _Finder:
    """Steps in where metaseq imports what is not there."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Find nothing; but before metaseq's first module is imported, put back what all of it expects."""
        del path, target
        if name == "metaseq":
            sys.meta_path.remove(_Finder)
            _prepare()


def _prepare() -> None:
    from omegaconf import _utils  # noqa: PLC0415 - only where metaseq is used

    _utils.__class__ = _Primitive
    for name, mask in (("scaled_masked_softmax_cuda", _given), ("scaled_upper_triang_masked_softmax_cuda", _causal)):
        if any(file for path in sys.path for file in Path(path, *_KERNELS.split(".")).glob(f"{name}.*.so")):
            continue
        module = ModuleType(f"{_KERNELS}.{name}")
        module.forward, module.backward = _softmax(mask), _gradient  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module


def _given(inputs: Any, mask: Any) -> Any:
    del inputs
    return mask


def _causal(inputs: Any) -> Any:
    return inputs.new_ones(inputs.shape[-2:]).triu(1).bool()


def _softmax(mask: Callable[..., Any]) -> Callable[..., Any]:
    def forward(inputs: Any, *masks_and_scale: Any) -> Any:
        *masks, scale = masks_and_scale
        # The number that the kernels put instead of masked scores.
        return (inputs * scale).masked_fill(mask(inputs, *masks), -10000.0).softmax(-1)

    return forward


def _gradient(gradients: Any, softmax: Any, scale: Any) -> Any:
    products = gradients * softmax
    return scale * (products - softmax * products.sum(-1, keepdim=True))


dataclasses.dataclass = _with_hash
sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]  # the class serves as well as an instance
