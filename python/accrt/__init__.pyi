# Names of the package for type checkers and editors: at run time __init__.py loads each when it is
# first used. tests/python/test_types.py compares them.
from . import bundle_reader as bundle_reader, bundle_writer as bundle_writer, compiler as compiler
from . import errors as errors, jax as jax, layouts as layouts, models as models, serve as serve, torch as torch, trust as trust, weights as weights
from ._cuda_arrays import from_cuda_array as from_cuda_array
from ._kernel_gpu import GpuKernel as GpuKernel
from ._nvrtc import CompileError as CompileError
from ._records import Argument as Argument, Asset as Asset, Constant as Constant, Counter as Counter, DeviceInfo as DeviceInfo, PoolEntry as PoolEntry, Signature as Signature, Symbol as Symbol
from .adapter import Adapter as Adapter
from .budget import Budget as Budget
from .bundle import Bundle as Bundle
from .call import Call as Call, Function as Function
from .errors import *
from .from_onnx import from_onnx as from_onnx
from .from_torch import from_torch as from_torch
from .instance import Device as Device, Instance as Instance, caps as caps, default_instance as default_instance
from .kernels import Commands as Commands, DeviceKernel as DeviceKernel, Kernel as Kernel, KernelPack as KernelPack, Launch as Launch, launch as launch
from .llm import BadParameter as BadParameter, LLM as LLM
from .memory import Buffer as Buffer, Pool as Pool
from .program import Program as Program, load as load
from .session import Session as Session
from .stream import Event as Event, Semaphore as Semaphore, Stream as Stream
from .tensor import Tensor as Tensor, from_dlpack as from_dlpack
from .weights import Weight as Weight, Weights as Weights

__version__: str
