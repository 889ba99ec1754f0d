"""What is set of backends: where they are, how names are looked up, what speaks there, and the flags of its engine."""

import enum
import sys
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from kvguard.discovery import DiscoveryPolicy, parse_nameserver
from kvguard.engines.kind import EngineKind
from kvguard.engines.tgi_blocks import parse_version
from kvguard.estimate.sizes import parse_size
from kvguard.section import PositiveInt, Seconds, Section, together

TgiAttention = Literal["flashinfer", "flashdecoding", "paged", "flashdecoding-ipex"]
TGI_PREFIX: Final = "tgi+"
DNS_PREFIX: Final = "dns+"
HTTP_PORT: Final = 80
SIMULATED_VLLM, SIMULATED_TGI = SIMULATED = ("sim://", "sim+tgi://")


class ModeChoice(enum.Enum):
    """Whether decisions are carried out, or only reported."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


class EngineFlags(Section):
    """Flags the engine was started with, under its own names. They matter only where they differ from its defaults."""

    max_num_batched_tokens: PositiveInt = 8192
    """Tokens one step may compute; sets how much sliding windows hold while a prompt is computed."""
    max_num_seqs: PositiveInt | None = None
    """Sequences that may run at once; with it kvguard can tell which thresholds are out of reach."""
    enable_prefix_caching: bool = True
    """With it a recurrent layer holds a second state while a prompt takes several steps."""
    disable_hybrid_kv_cache_manager: bool = False
    """With it sliding layers beside full ones keep every token."""
    num_speculative_tokens: Annotated[int, Field(ge=0)] = 0
    """Slots kept ahead of every sequence by EAGLE, MTP and draft models; n-gram speculation has none."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs that share each layer; bytes are those of one."""
    pipeline_parallel_size: PositiveInt = 1
    """Stages the layers are spread over; bytes are those of the fullest."""
    decode_context_parallel_size: PositiveInt = 1
    """GPUs that share the tokens of a sequence; a block spans that many times its size."""
    kv_cache_dtype: str = "auto"
    """Format of the cache; auto is the checkpoint's."""
    mamba_ssm_cache_dtype: str = "auto"
    """Format of recurrent state; auto is the checkpoint's."""


class TgiFlags(Section):
    """Flags TGI was started with, under its own names, and what it runs on. Its API tells none of them since 2.3."""

    max_batch_total_tokens: PositiveInt | None = None
    """Size of the KV cache in tokens, as TGI logs it at start; default what `/info` says (up to 2.2), else what
    `geometry` and `gpu_memory` make of it, else the longest request it takes, which is a lower bound."""
    attention: TgiAttention | None = None
    """`ATTENTION`; sets the tokens of a block. Default `flashinfer` since 2.3, `paged` before."""
    speculate: Annotated[int, Field(ge=0)] = 0
    """Tokens of speculation, reserved with every request."""
    prefix_caching: bool = True
    """`PREFIX_CACHING`; matters to windows before 3.2.1."""
    sliding_window: PositiveInt | None = None
    """Window of the model; TGI reserves less for it before 3.2.1."""
    num_shard: PositiveInt = 1
    """GPUs that share the model; bytes are those of one."""
    version: str | None = None
    """Release, where `/info` has it wrong, such as `3.3.7`."""
    gpu_memory: str | None = None
    """Memory of one GPU, such as `24GiB`; with `geometry` it gives an estimate of the KV cache."""
    overhead: str = "0"
    """What activations and CUDA graphs take of it on each GPU."""
    weights: str = "auto"
    """Bytes of the whole model's weights; `auto` works them out from `geometry`."""

    @field_validator("version")
    @classmethod
    def _release(cls, value: str | None) -> str | None:
        if value is not None and parse_version(value) is None:
            raise ValueError("must be three numbers, such as 3.3.7")
        return value

    @field_validator("gpu_memory", "overhead", "weights")
    @classmethod
    def _size(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and not (info.field_name == "weights" and value == "auto"):
            parse_size(value)
        return value


class BackendSettings(Section):
    """One model server."""

    url: str
    """`http(s)://host:port` of vLLM, `tgi+http(s)://host:port` of TGI, or an embedded engine: `sim://` speaks vLLM,
    `sim+tgi://` TGI. `dns+http://name:port` (`tgi+dns+http://name:port`) stands for every address of the name, each a
    backend for which all of this entry holds."""
    name: str | None = None
    """Label of this backend in metrics and logs; default host:port. Each address of a name is `label/address`."""
    capacity_blocks: PositiveInt | None = None
    """Usable KV blocks, overriding what the engine publishes."""
    block_size: PositiveInt | None = None
    """Tokens per KV block, overriding what the engine publishes."""
    context_tokens: PositiveInt | None = None
    """Longest prompt plus output of the model; default what `/v1/models` says."""
    kv_usage_metric: str | None = None
    """Name of the KV usage gauge where it is not one of vLLM's."""
    geometry: str | None = None
    """The model: its Hugging Face `config.json`, a directory with one, or a preset of `kvguard estimate --list`. Gives
    blocks by layer, and bytes; models that mix kinds of layers need it."""
    min_prompt_tokens: Annotated[int, Field(ge=0)] = 0
    """Shortest prompt that goes there: long prompts may be kept to servers of their own."""
    max_prompt_tokens: PositiveInt | None = None
    """Longest prompt that goes there, as long as another backend of the model takes it; default any."""
    mode: ModeChoice | None = None
    """`enforce` or `shadow` for this backend; default as `mode`."""
    engine: EngineFlags = EngineFlags()
    tgi: TgiFlags = TgiFlags()

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if value.startswith(SIMULATED):
            return value
        address = value.removeprefix(TGI_PREFIX)
        parts = urlsplit(address.removeprefix(DNS_PREFIX))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                "must be http(s)://host:port, tgi+http(s)://host:port, (tgi+)dns+http://name:port, sim:// or sim+tgi://"
            )
        if parts.scheme == "https" and address.startswith(DNS_PREFIX):
            raise ValueError("dns+https cannot work: certificates are for names, and each backend found is an address")
        if "@" in parts.netloc:  # it would show in metrics and logs
            raise ValueError("must not hold a user or a password; kvguard passes on what clients send")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError("must end after host:port; kvguard adds the path")
        if parts.port == 0:
            raise ValueError("port must be 1 to 65535")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _heeded(self) -> Self:
        if self.kind is EngineKind.VLLM and self.tgi != TgiFlags():
            raise together("tgi is for backends of TGI; write tgi+http://host:port if this is one", "url", "tgi")
        if self.kind is EngineKind.TGI and self.kv_usage_metric is not None:
            raise together("kv_usage_metric is for vLLM; TGI has no such gauge", "url", "kv_usage_metric")
        if self.tgi.gpu_memory is not None and self.geometry is None:
            text = "tgi.gpu_memory tells nothing without geometry, the model whose weights lie there"
            raise together(text, "geometry", ("tgi", "gpu_memory"))
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < self.min_prompt_tokens:
            text = "max_prompt_tokens must be at least min_prompt_tokens"
            raise together(text, "min_prompt_tokens", "max_prompt_tokens")
        return self

    @property
    def prompts(self) -> range:
        """Tokens a prompt may have that goes there."""
        longest = sys.maxsize if self.max_prompt_tokens is None else self.max_prompt_tokens + 1
        return range(self.min_prompt_tokens, longest)

    @property
    def label(self) -> str:
        """Name in metrics and logs."""
        return self.name or urlsplit(self.url).netloc or "sim"

    @property
    def kind(self) -> EngineKind:
        """What speaks there."""
        return EngineKind.TGI if self.url.startswith((TGI_PREFIX, SIMULATED_TGI)) else EngineKind.VLLM

    @property
    def base_url(self) -> str:
        """Where it is, for a client."""
        return self.url.removeprefix(TGI_PREFIX)

    @property
    def discovers(self) -> bool:
        """Whether this stands for every address of a name; `at` makes the backend of one."""
        return self.base_url.startswith(DNS_PREFIX)

    @property
    def host(self) -> str:
        """The name, or the address, without a port."""
        return urlsplit(self.url).hostname or ""

    def at(self, address: str) -> Self:
        """The backend at one of the addresses found."""
        prefix = TGI_PREFIX if self.kind is EngineKind.TGI else ""
        host = f"[{address}]" if ":" in address else address
        url = f"{prefix}http://{host}:{urlsplit(self.url).port or HTTP_PORT}"
        return self.model_copy(update={"url": url, "name": f"{self.label}/{address}"})


class DiscoverySettings(Section):
    """Looking up the names of backends at `dns+http://`; `docs/architecture.md` says what becomes of the answers."""

    interval_seconds: Seconds = 5.0
    """Pause between look-ups of a name."""
    timeout_seconds: Seconds = 2.0
    """Longest look-up; a name server that is silent for half of it is given up for the next, or asked again."""
    nameservers: tuple[str, ...] = ()
    """Name servers in place of those in `/etc/resolv.conf`, as `10.0.0.10` or `127.0.0.1:5353`; its search domains and
    `ndots` hold all the same."""

    @field_validator("nameservers")
    @classmethod
    def _addresses(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for each in given:
            try:
                parse_nameserver(each)
            except ValueError as error:
                raise ValueError(f"{each}: must be an address, or address:port, [address]:port for IPv6") from error
        return given

    def policy(self) -> DiscoveryPolicy:
        """What the look-ups go by."""
        return DiscoveryPolicy(
            interval_seconds=self.interval_seconds,
            timeout_seconds=self.timeout_seconds,
            nameservers=self.nameservers,
        )
