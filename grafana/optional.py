"""Rows on what only some sites use; folded away."""

from grafana.panel import Panel, Query, Row
from grafana.queries import increase, of_backend, ours, rate, total, worst

SHADOW = 'mode="shadow"'


def tenants() -> Row:
    """Who fills the cache."""
    return Row(
        title="Tenants and capacity",
        folded=True,
        panels=(
            Panel(
                title="Blocks by tenant",
                description="Blocks each tenant's requests in flight come to at full length (`kvguard_tenant_blocks`); "
                "`tenants[].max_share` bounds them.",
                unit="short",
                stacked=True,
                queries=(Query(expression=total(of_backend("kvguard_tenant_blocks"), "tenant"), legend="{{tenant}}"),),
            ),
            Panel(
                title="Requests by tenant and class",
                description="Requests a second by who asked (`kvguard_caller_requests_total`).",
                unit="reqps",
                stacked=True,
                queries=(
                    Query(
                        expression=total(
                            rate(ours("kvguard_caller_requests_total", 'outcome!="failed"')), "tenant", "priority"
                        ),
                        legend="{{tenant}}, {{priority}}",
                    ),
                ),
            ),
            Panel(
                title="Size of the cache",
                description="Tokens each cache holds (`kvguard_kv_capacity_tokens`). Absent: kvguard does not know.",
                unit="short",
                nothing="Not known",
                queries=(
                    Query(expression=worst(of_backend("kvguard_kv_capacity_tokens"), "backend"), legend="{{backend}}"),
                ),
            ),
            Panel(
                title="Size of the cache in bytes",
                description="Bytes on one GPU (`kvguard_kv_capacity_bytes`); needs `backends[].geometry`.",
                unit="bytes",
                width=12,
                nothing="Needs backends[].geometry",
                queries=(
                    Query(expression=worst(of_backend("kvguard_kv_capacity_bytes"), "backend"), legend="{{backend}}"),
                ),
            ),
            Panel(
                title="Block rule against the engine",
                description="Blocks of a request of full context by kvguard's rule over the engine's own number "
                "(`kvguard_block_rule_ratio`); 1 is right.",
                unit="none",
                width=12,
                bounds=(None, None),
                nothing="Not known",
                queries=(
                    Query(expression=worst(of_backend("kvguard_block_rule_ratio"), "backend"), legend="{{backend}}"),
                ),
            ),
        ),
    )


def shadow() -> Row:
    """What would have been done."""
    return Row(
        title="Shadow mode",
        folded=True,
        panels=(
            Panel(
                title="What would have been decided",
                description="Requests a second by the decision that was reported and not carried out "
                "(`kvguard_requests_total`).",
                unit="reqps",
                width=12,
                stacked=True,
                queries=(
                    Query(
                        expression=total(rate(ours("kvguard_requests_total", SHADOW)), "outcome", "reason"),
                        legend="{{outcome}} {{reason}}",
                    ),
                ),
            ),
            Panel(
                title="Backends in shadow mode",
                description="1 where decisions are only reported (`kvguard_shadow_mode`).",
                unit="none",
                width=12,
                queries=(Query(expression=worst(of_backend("kvguard_shadow_mode"), "backend"), legend="{{backend}}"),),
            ),
        ),
    )


def discovery() -> Row:
    """Servers that come and go."""
    return Row(
        title="Discovery and failover",
        folded=True,
        panels=(
            Panel(
                title="Addresses behind names",
                description="Addresses in use behind each `dns+` backend (`kvguard_discovered_backends`).",
                unit="short",
                nothing="No names",
                queries=(
                    Query(expression=f"min by (backend) ({ours('kvguard_discovered_backends')})", legend="{{backend}}"),
                ),
            ),
            Panel(
                title="Look-ups that failed",
                description="Look-ups that gave no addresses (`kvguard_discovery_failures_total`); those known so far "
                "stay in use.",
                unit="short",
                nothing="No names",
                queries=(
                    Query(
                        expression=total(increase(ours("kvguard_discovery_failures_total")), "backend"),
                        legend="{{backend}}",
                    ),
                ),
            ),
            Panel(
                title="Reroutes and shared addresses",
                description="Requests that went elsewhere because this backend took no connection "
                "(`kvguard_reroutes_total`), and 1 where several servers answer under one address "
                "(`kvguard_backend_shared_address`): give them addresses of their own.",
                unit="short",
                queries=(
                    Query(
                        expression=total(increase(of_backend("kvguard_reroutes_total")), "backend"),
                        legend="{{backend}} reroutes",
                    ),
                    Query(
                        expression=worst(of_backend("kvguard_backend_shared_address"), "backend"),
                        legend="{{backend}} shared",
                    ),
                ),
            ),
        ),
    )
