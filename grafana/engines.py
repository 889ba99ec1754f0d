"""Rows of the engines' own numbers beside kvguard's; folded away, as a site has one kind of engine or the other."""

from grafana.panel import Panel, Query, Row
from grafana.queries import increase, mean, of_backend, of_engine, ours, rate, share, total, worst


def vllm() -> Row:
    """vLLM's scheduler and cache beside what kvguard makes of them."""
    hits, queries = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
    return Row(
        title="vLLM beside kvguard",
        folded=True,
        panels=(
            Panel(
                title="KV cache: vLLM and kvguard",
                description="vLLM's own gauge (`vllm:kv_cache_usage_perc`) and what kvguard projects from it "
                "(`kvguard_kv_usage_ratio`).",
                unit="percentunit",
                queries=(
                    Query(
                        expression=worst(of_engine("vllm:kv_cache_usage_perc"), "instance", "engine"),
                        legend="vLLM {{instance}} {{engine}}",
                    ),
                    Query(
                        expression=worst(of_backend("kvguard_kv_usage_ratio", 'kind="projected"'), "backend"),
                        legend="kvguard {{backend}}",
                    ),
                ),
            ),
            Panel(
                title="Requests in vLLM and in flight",
                description="Running and waiting in vLLM (`vllm:num_requests_running`, `vllm:num_requests_waiting`); "
                "together they should be kvguard's in flight (`kvguard_inflight_requests`). More: load goes past "
                "kvguard.",
                unit="short",
                queries=(
                    Query(expression=total(of_engine("vllm:num_requests_running")), legend="vLLM running"),
                    Query(expression=total(of_engine("vllm:num_requests_waiting")), legend="vLLM waiting"),
                    Query(expression=total(of_backend("kvguard_inflight_requests")), legend="kvguard in flight"),
                ),
            ),
            Panel(
                title="Waiting in vLLM, by reason",
                description="`vllm:num_requests_waiting_by_reason`: `capacity` waits for blocks.",
                unit="short",
                queries=(
                    Query(
                        expression=total(of_engine("vllm:num_requests_waiting_by_reason"), "reason"),
                        legend="{{reason}}",
                    ),
                ),
            ),
            Panel(
                title="Preempted and turned away by vLLM, refused by kvguard",
                description="`vllm:num_preemptions_total` and `vllm:admission_rejections_total`, which counts what "
                "vLLM's own queue limits refuse, beside `kvguard_requests_total`: who refuses in time has neither.",
                unit="short",
                queries=(
                    Query(expression=total(increase(of_engine("vllm:num_preemptions_total"))), legend="preempted"),
                    Query(
                        expression=total(increase(of_engine("vllm:admission_rejections_total"))),
                        legend="turned away by vLLM",
                    ),
                    Query(
                        expression=total(increase(ours("kvguard_requests_total", 'outcome="rejected"'))),
                        legend="refused by kvguard",
                    ),
                ),
            ),
            Panel(
                title="Tokens: vLLM and kvguard",
                description="Tokens a second that vLLM reads and produces (`vllm:prompt_tokens_total`, "
                "`vllm:generation_tokens_total`), and the output kvguard saw (`kvguard_tokens_total`).",
                unit="short",
                queries=(
                    Query(expression=total(rate(of_engine("vllm:prompt_tokens_total"))), legend="vLLM prompt"),
                    Query(expression=total(rate(of_engine("vllm:generation_tokens_total"))), legend="vLLM output"),
                    Query(
                        expression=total(rate(ours("kvguard_tokens_total", 'kind="generated"'))),
                        legend="kvguard output",
                    ),
                ),
            ),
            Panel(
                title="Prefix cache and ends in vLLM",
                description="Share of prompt tokens found in the prefix cache (`vllm:prefix_cache_hits_total` over "
                "`vllm:prefix_cache_queries_total`), and the share of requests that ended at their cap "
                "(`vllm:request_success_total`), which trimming raises.",
                unit="percentunit",
                bounds=(0, 1),
                queries=(
                    Query(
                        expression=share(total(rate(of_engine(hits))), total(rate(of_engine(queries)))),
                        legend="prefix cache hits",
                    ),
                    Query(
                        expression=share(
                            total(rate(of_engine("vllm:request_success_total", 'finished_reason="length"'))),
                            total(rate(of_engine("vllm:request_success_total"))),
                        ),
                        legend="ended at the cap",
                    ),
                ),
            ),
        ),
    )


def tgi() -> Row:
    """TGI's batch and queue beside what kvguard makes of them."""
    return Row(
        title="TGI beside kvguard",
        folded=True,
        panels=(
            Panel(
                title="Cache: TGI and kvguard",
                description="Tokens the running batch has reserved (`tgi_batch_current_max_tokens`) beside the size "
                "of the cache as kvguard knows it (`kvguard_kv_capacity_tokens`).",
                unit="short",
                queries=(
                    Query(
                        expression=worst(of_engine("tgi_batch_current_max_tokens"), "instance"),
                        legend="TGI {{instance}}",
                    ),
                    Query(
                        expression=worst(of_backend("kvguard_kv_capacity_tokens"), "backend"),
                        legend="size of {{backend}}",
                    ),
                ),
            ),
            Panel(
                title="Requests in TGI and in flight",
                description="Running and waiting in TGI (`tgi_batch_current_size`, `tgi_queue_size`) beside "
                "kvguard's in flight (`kvguard_inflight_requests`). More: load goes past kvguard.",
                unit="short",
                queries=(
                    Query(expression=total(of_engine("tgi_batch_current_size")), legend="TGI running"),
                    Query(expression=total(of_engine("tgi_queue_size")), legend="TGI waiting"),
                    Query(expression=total(of_backend("kvguard_inflight_requests")), legend="kvguard in flight"),
                ),
            ),
            Panel(
                title="Time in TGI's queue and in TGI",
                description="Means of `tgi_request_queue_duration` and `tgi_request_duration`; TGI's buckets are too "
                "wide for quantiles.",
                unit="s",
                queries=(
                    Query(expression=mean("tgi_request_queue_duration"), legend="queue"),
                    Query(expression=mean("tgi_request_duration"), legend="whole request"),
                ),
            ),
            Panel(
                title="Requests of TGI",
                description="Requests a second that came and that ended well (`tgi_request_count`, "
                "`tgi_request_success`).",
                unit="reqps",
                queries=(
                    Query(expression=total(rate(of_engine("tgi_request_count"))), legend="came"),
                    Query(expression=total(rate(of_engine("tgi_request_success"))), legend="ended well"),
                ),
            ),
            Panel(
                title="Output: TGI and kvguard",
                description="Mean tokens produced (`tgi_request_generated_tokens`) beside the mean cap "
                "(`tgi_request_max_new_tokens`), which trimming lowers.",
                unit="short",
                queries=(
                    Query(expression=mean("tgi_request_generated_tokens"), legend="produced"),
                    Query(expression=mean("tgi_request_max_new_tokens"), legend="cap"),
                ),
            ),
            Panel(
                title="Time for a token in TGI",
                description="Mean of `tgi_request_mean_time_per_token_duration`.",
                unit="s",
                queries=(Query(expression=mean("tgi_request_mean_time_per_token_duration"), legend="per token"),),
            ),
        ),
    )
