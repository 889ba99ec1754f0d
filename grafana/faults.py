"""Rows on whether kvguard's own numbers can be believed."""

from grafana.panel import Colour, Kind, Panel, Query, Row, Style
from grafana.queries import increase, of_backend, ours, quantile, rate, share, total, worst
from grafana.states import CONDITIONS, NOT_READY, PHASES, STANDINGS, TELEMETRY, numbered, phases

EXPECTED = Style(colour=Colour.DIM, dashed=True)


def prediction() -> Row:
    """What was predicted of footprints, prompts and answers, against what they came to."""
    exceeded, answers = "kvguard_forecast_exceeded_total", "kvguard_forecast_answers_total"
    return Row(
        title="Prediction against reality",
        panels=(
            Panel(
                title="Footprint error",
                description="Blocks of generating requests by kvguard's ledger over those by the engine's gauge, less "
                "1 (`kvguard_footprint_error_ratio`). Far from 0 for long: `backends[].geometry` is not the model "
                "that is served.",
                unit="percentunit",
                bounds=(None, None),
                queries=(
                    Query(
                        expression=worst(of_backend("kvguard_footprint_error_ratio"), "backend"), legend="{{backend}}"
                    ),
                ),
            ),
            Panel(
                title="Answers longer than forecast",
                description="Share of whole answers that outgrew their forecast, by where it came from "
                "(`kvguard_forecast_exceeded_total` over `kvguard_forecast_answers_total`). Dashed: the share to "
                "expect, 1 - `forecast.quantile` (`kvguard_forecast_quantile_ratio`).",
                unit="percentunit",
                bounds=(0, 1),
                styles={"expected": EXPECTED},
                queries=(
                    Query(
                        expression=share(
                            total(rate(of_backend(exceeded)), "source"), total(rate(of_backend(answers)), "source")
                        ),
                        legend="{{source}}",
                    ),
                    Query(expression=f"1 - {worst(ours('kvguard_forecast_quantile_ratio'))}", legend="expected"),
                ),
            ),
            Panel(
                title="Error of prompt counts",
                description="95 % of prompts were counted with a smaller error than this against the engine's own "
                "usage, by who counted (`kvguard_prompt_error_tokens`).",
                unit="short",
                queries=(
                    Query(
                        expression=quantile(0.95, ours("kvguard_prompt_error_tokens_bucket"), "source"),
                        legend="{{source}}",
                    ),
                ),
            ),
            Panel(
                title="Who counts prompts",
                description="Counts a second by who made them (`kvguard_token_counts_total`). `learned` is the "
                "coarsest; where `local` or `engine` should count, their counting fails.",
                unit="ops",
                stacked=True,
                queries=(
                    Query(expression=total(rate(ours("kvguard_token_counts_total")), "source"), legend="{{source}}"),
                ),
            ),
            Panel(
                title="Blocks in the ledger",
                description="Blocks that kvguard's own requests hold (`kvguard_ledger_blocks`), and those of common "
                "beginnings among them, held once (`kvguard_shared_prefix_blocks`).",
                unit="short",
                queries=(
                    Query(expression=total(of_backend("kvguard_ledger_blocks"), "backend"), legend="{{backend}} held"),
                    Query(
                        expression=total(of_backend("kvguard_shared_prefix_blocks"), "backend"),
                        legend="{{backend}} shared",
                    ),
                ),
            ),
            Panel(
                title="Ledger violations",
                description="Ledger entries that did not add up (`kvguard_ledger_violations_total`). Anything above 0 "
                "is a fault of kvguard.",
                unit="short",
                queries=(
                    Query(
                        expression=total(increase(of_backend("kvguard_ledger_violations_total")), "backend"),
                        legend="{{backend}}",
                    ),
                ),
            ),
        ),
    )


def telemetry() -> Row:
    """Whether gauges arrive, servers answer, and settings were taken over."""
    return Row(
        title="Telemetry and settings",
        panels=(
            Panel(
                title="Gauge of the engine",
                description="Whether the engine's gauge arrives (`kvguard_telemetry_state`). Stale and missing are "
                "faults, not load: `telemetry.when_blind` says what happens meanwhile.",
                unit="none",
                kind=Kind.STATES,
                meanings={float(number): meaning for number, meaning in TELEMETRY.items()},
                queries=(
                    Query(expression=numbered("kvguard_telemetry_state", "state", TELEMETRY), legend="{{backend}}"),
                ),
            ),
            Panel(
                title="Condition of the engine",
                description="What the engine's own numbers say it is doing (`kvguard_engine_condition`). Stalled and "
                "contradiction are faults.",
                unit="none",
                kind=Kind.STATES,
                meanings={float(number): meaning for number, meaning in CONDITIONS.items()},
                queries=(
                    Query(expression=numbered("kvguard_engine_condition", "state", CONDITIONS), legend="{{backend}}"),
                ),
            ),
            Panel(
                title="Standing of the backend",
                description="Whether it is given new requests (`kvguard_backend_standing`).",
                unit="none",
                kind=Kind.STATES,
                meanings={float(number): meaning for number, meaning in STANDINGS.items()},
                queries=(
                    Query(expression=numbered("kvguard_backend_standing", "standing", STANDINGS), legend="{{backend}}"),
                ),
            ),
            Panel(
                title="Age of the gauge",
                description="Seconds since the last good scrape (`kvguard_scrape_age_seconds`). Past "
                "`telemetry.stale_after_seconds` it is stale.",
                unit="s",
                queries=(
                    Query(expression=worst(of_backend("kvguard_scrape_age_seconds"), "backend"), legend="{{backend}}"),
                ),
            ),
            Panel(
                title="Failures",
                description="Scrapes that gave no gauge (`kvguard_scrape_failures_total`), times a backend was taken "
                "out for failing (`kvguard_backend_ejections_total`), and requests let through to a faulty engine to "
                "see whether it is well again (`kvguard_engine_probes_total`).",
                unit="short",
                queries=tuple(
                    Query(expression=total(increase(of_backend(f"kvguard_{name}_total")), "backend"), legend=legend)
                    for name, legend in (
                        ("scrape_failures", "{{backend}} scrapes"),
                        ("backend_ejections", "{{backend}} ejections"),
                        ("engine_probes", "{{backend}} probes"),
                    )
                ),
            ),
            Panel(
                title="Phase of kvguard",
                description="What each instance is doing (`kvguard_phase`), and in red that it is not ready though it "
                "serves (`kvguard_ready`): it knows no backend that answers.",
                unit="none",
                kind=Kind.STATES,
                meanings={float(number): meaning for number, meaning in (PHASES | NOT_READY).items()},
                queries=(Query(expression=phases(), legend="{{instance}}"),),
            ),
            Panel(
                title="Settings and releases",
                description="Hash of the settings in force (`kvguard_config_info`) and release (`kvguard_build_info`) "
                "of every instance. All replicas should have the same.",
                width=16,
                unit="none",
                kind=Kind.TABLE,
                columns={"instance": "Instance", "version": "Release", "hash": "Settings"},
                queries=(
                    Query(
                        expression=f"{ours('kvguard_build_info')} * on (job, instance) group_left (hash) "
                        f"{ours('kvguard_config_info')}"
                    ),
                ),
            ),
            Panel(
                title="Age of the settings",
                description="Time since the settings file was last read without faults, the start included "
                "(`kvguard_config_last_reload_success_timestamp_seconds`). After a change it should be short on every "
                "instance.",
                unit="s",
                kind=Kind.NUMBERS,
                queries=(
                    Query(
                        expression="time() - max by (instance) "
                        f"({ours('kvguard_config_last_reload_success_timestamp_seconds')})",
                        legend="{{instance}}",
                    ),
                ),
            ),
            Panel(
                title="Settings taken over",
                description="1 while the settings file, as last read, has no faults "
                "(`kvguard_config_last_reload_successful`), and how often it had some "
                "(`kvguard_config_reload_failures_total`); messages to the receiver of `alerts` that failed "
                "(`kvguard_alert_push_failures_total`).",
                unit="short",
                queries=(
                    Query(
                        expression=f"min by (instance) ({ours('kvguard_config_last_reload_successful')})",
                        legend="{{instance}} without faults",
                    ),
                    Query(
                        expression=total(increase(ours("kvguard_config_reload_failures_total")), "instance"),
                        legend="{{instance}} faulty changes",
                    ),
                    Query(
                        expression=total(increase(ours("kvguard_alert_push_failures_total")), "instance"),
                        legend="{{instance}} alerts not taken",
                    ),
                ),
            ),
            Panel(
                title="Thresholds out of reach",
                description="1 for a tier that this engine cannot reach, with its own limits on what it runs at once "
                "(`kvguard_threshold_state`): it would never begin.",
                unit="none",
                queries=(
                    Query(
                        expression=worst(
                            of_backend("kvguard_threshold_state", 'state="unreachable"'), "backend", "tier"
                        ),
                        legend="{{backend}} {{tier}}",
                    ),
                ),
            ),
            Panel(
                title="Lines lost from the decision log",
                description="Lines of the log for replay that could not be written "
                "(`kvguard_decision_log_dropped_total`).",
                unit="short",
                queries=(
                    Query(
                        expression=total(increase(ours("kvguard_decision_log_dropped_total")), "instance"),
                        legend="{{instance}}",
                    ),
                ),
            ),
        ),
    )
