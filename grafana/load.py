"""Rows on what waits, what is asked for, and how long it takes."""

from grafana.panel import Colour, Panel, Query, Row, Style
from grafana.queries import increase, of_backend, ours, quantile, rate, share, total, worst

RANKS = {0.5: "median", 0.95: "95 %", 0.99: "99 %"}


def queue() -> Row:
    """What waits where, and how fast it drains."""
    return Row(
        title="Queue and drain",
        panels=(
            Panel(
                title="In flight",
                description="Admitted requests and their sequences that run in the engine or wait there "
                "(`kvguard_inflight_requests`, `kvguard_inflight_sequences`).",
                unit="short",
                queries=(
                    Query(
                        expression=total(of_backend("kvguard_inflight_requests"), "backend"),
                        legend="{{backend}} requests",
                    ),
                    Query(
                        expression=total(of_backend("kvguard_inflight_sequences"), "backend"),
                        legend="{{backend}} sequences",
                    ),
                ),
            ),
            Panel(
                title="Waiting",
                description="Requests that wait for blocks: in kvguard, where `waiting` is on "
                "(`kvguard_waiting_requests`), and in each engine (`kvguard_engine_waiting`). A queue in the engine "
                "means that it is full, whatever its gauge says.",
                unit="short",
                queries=(
                    Query(expression=total(ours("kvguard_waiting_requests")), legend="in kvguard"),
                    Query(expression=worst(of_backend("kvguard_engine_waiting"), "backend"), legend="in {{backend}}"),
                ),
            ),
            Panel(
                title="Time in kvguard's queue",
                description="95 % of those that waited did so for less, by how it ended (`kvguard_wait_seconds`). Many "
                "`timed_out`: raise `waiting.max_seconds`, or turn waiting off.",
                unit="s",
                queries=(
                    Query(expression=quantile(0.95, ours("kvguard_wait_seconds_bucket"), "end"), legend="{{end}}"),
                ),
            ),
            Panel(
                title="Retry-After",
                description="When refused clients are told to come back (`kvguard_retry_after_seconds`).",
                unit="s",
                nothing="None refused",
                queries=_ranks("kvguard_retry_after_seconds"),
            ),
            Panel(
                title="Prefill backlog",
                description="Prompt tokens of admitted requests whose first token has not come "
                "(`kvguard_prefill_backlog_tokens`).",
                unit="short",
                queries=(
                    Query(
                        expression=total(of_backend("kvguard_prefill_backlog_tokens"), "backend"), legend="{{backend}}"
                    ),
                ),
            ),
            Panel(
                title="Preemptions",
                description="Preemptions that engines report (`kvguard_engine_preemptions_total`); TGI has none. They "
                "mean that more was let in than fits: lower `tiers.reject_at`.",
                unit="short",
                queries=(
                    Query(
                        expression=worst(increase(of_backend("kvguard_engine_preemptions_total")), "backend"),
                        legend="{{backend}}",
                    ),
                ),
            ),
        ),
    )


def demand() -> Row:
    """Tokens offered, admitted and refused, and the load that autoscaling should see."""
    tokens = "kvguard_tokens_total"
    offered = total(rate(ours(tokens, 'kind=~"prompt|requested|rejected"')))
    asked = total(rate(ours(tokens, 'kind=~"prompt|requested"')))
    trimmed, refused = total(rate(ours(tokens, 'kind="trimmed"'))), total(rate(ours(tokens, 'kind="rejected"')))
    ratio = of_backend("kvguard_demand_ratio")
    return Row(
        title="Tokens and demand",
        panels=(
            Panel(
                title="Tokens offered, admitted, trimmed, refused",
                description="Prompt and output tokens a second as asked for (`kvguard_tokens_total`): offered is all "
                "of it, admitted what was let through after trimming.",
                unit="short",
                queries=(
                    Query(expression=offered, legend="offered"),
                    Query(expression=f"{asked} - {trimmed}", legend="admitted"),
                    Query(expression=trimmed, legend="trimmed"),
                    Query(expression=refused, legend="refused"),
                ),
            ),
            Panel(
                title="Demand",
                description="KV cache that everything admitted and lately refused would fill, not clipped at 100 % "
                "(`kvguard_demand_ratio`). Its sum over backends is about how many of them are needed: use it for "
                "autoscaling.",
                unit="percentunit",
                queries=(Query(expression=worst(ratio, "backend"), legend="{{backend}}"),),
                steps=((1, Colour.REJECT),),
            ),
            Panel(
                title="Tokens produced",
                description="Output tokens a second that engines say they produced (`kvguard_tokens_total`).",
                unit="short",
                queries=(Query(expression=total(rate(ours(tokens, 'kind="generated"'))), legend="produced"),),
            ),
        ),
    )


def latency() -> Row:
    """What clients feel, and what of it is kvguard's."""
    first = "kvguard_time_to_first_byte_seconds"
    within = total(rate(ours(f"{first}_bucket", 'le="$slo_first_byte"')))
    objective = Style(colour=Colour.REJECT, dashed=True)
    return Row(
        title="Latency",
        panels=(
            Panel(
                title="Time to the first byte",
                description="From receiving a request to the first byte of its answer, waiting included "
                "(`kvguard_time_to_first_byte_seconds`). Dashed: the target chosen above.",
                unit="s",
                styles={"target": objective},
                queries=(*_ranks(first), Query(expression="vector($slo_first_byte)", legend="target")),
            ),
            Panel(
                title="First byte in time",
                description="Share of answers whose first byte came within the target "
                "(`kvguard_time_to_first_byte_seconds`). Dashed: the share that is promised.",
                unit="percentunit",
                bounds=(0, 1),
                styles={"promised": objective},
                queries=(
                    Query(expression=share(within, total(rate(ours(f"{first}_count")))), legend="in time"),
                    Query(expression="vector($slo_share)", legend="promised"),
                ),
            ),
            Panel(
                title="Whole answers",
                description="From forwarding a request to the end of its answer (`kvguard_upstream_seconds`).",
                unit="s",
                queries=_ranks("kvguard_upstream_seconds"),
            ),
            Panel(
                title="What kvguard adds",
                description="99 % of decisions took less (`kvguard_decision_seconds`), and of counts of prompts "
                "(`kvguard_tokenize_seconds`).",
                unit="s",
                width=24,
                height=7,
                queries=(
                    Query(expression=quantile(0.99, ours("kvguard_decision_seconds_bucket")), legend="deciding"),
                    Query(expression=quantile(0.99, ours("kvguard_tokenize_seconds_bucket")), legend="counting"),
                ),
            ),
        ),
    )


def _ranks(histogram: str) -> tuple[Query, ...]:
    return tuple(
        Query(expression=quantile(rank, ours(f"{histogram}_bucket")), legend=name) for rank, name in RANKS.items()
    )
