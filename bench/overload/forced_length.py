"""A vLLM logits processor that ends a request after `vllm_xargs.length` tokens, well below the cap it declared.

A model with random weights never says when it is done. Real ones do, and that difference between what is asked for and
what is used is what the benchmark is about. Loaded by the server with `--logits-processors forced_length:ForcedLength`.
"""

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor, RequestLogitsProcessor

EOS_TOKEN_ID = 2  # of tests/vllm/make_model.py


class ForcedLength(AdapterLogitsProcessor):
    """End of sequence never before and always at the forced length."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        length = (params.extra_args or {}).get("length")
        return None if length is None else _ends_after(int(length))


def _ends_after(length: int) -> RequestLogitsProcessor:
    def process(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        if len(output_ids) >= length - 1:
            end = logits[EOS_TOKEN_ID].item()
            logits.fill_(float("-inf"))
            logits[EOS_TOKEN_ID] = end
        else:
            logits[EOS_TOKEN_ID] = float("-inf")
        return logits

    return process
