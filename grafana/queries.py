"""PromQL of the dashboard: which series a panel asks for, always within what its reader has chosen."""

JOB = 'job=~"$job", instance=~"$instance"'
ENGINE_JOB = 'job=~"$engine_job", instance=~"$engine_instance"'
INTERVAL = "$__rate_interval"


def ours(metric: str, *matchers: str) -> str:
    """A metric of the chosen instances of kvguard."""
    return _selector(metric, JOB, matchers)


def of_backend(metric: str, *matchers: str) -> str:
    """The same, of the chosen backends."""
    return _selector(metric, f'{JOB}, backend=~"$backend"', matchers)


def of_engine(metric: str, *matchers: str) -> str:
    """A metric of the chosen engines' own."""
    return _selector(metric, ENGINE_JOB, matchers)


def _selector(metric: str, chosen: str, matchers: tuple[str, ...]) -> str:
    return f"{metric}{{{', '.join((chosen, *matchers))}}}"


def rate(selector: str) -> str:
    """Of a counter, per second."""
    return f"rate({selector}[{INTERVAL}])"


def increase(selector: str) -> str:
    """Of a counter, over an interval."""
    return f"increase({selector}[{INTERVAL}])"


def total(expression: str, *by: str) -> str:
    """The sum over everything but these labels."""
    return f"sum{_by(by)} ({expression})"


def worst(expression: str, *by: str) -> str:
    """The largest of everything but these labels."""
    return f"max{_by(by)} ({expression})"


def share(part: str, whole: str) -> str:
    """A part over its whole; nothing where there is no whole."""
    return f"{part} / ({whole} > 0)"


def quantile(rank: float, bucket: str, *by: str) -> str:
    """A quantile of a histogram, of what was observed in an interval. `bucket` is the selector of its buckets."""
    return f"histogram_quantile({rank:g}, {total(rate(bucket), *by, 'le')})"


def mean(metric: str, *by: str) -> str:
    """The mean of what an engine's histogram observed in an interval."""
    return share(total(rate(of_engine(f"{metric}_sum")), *by), total(rate(of_engine(f"{metric}_count")), *by))


def called(expression: str, label: str, text: str) -> str:
    """The expression with a label that says what it stands for."""
    return f'label_replace({expression}, "{label}", "{text}", "", "")'


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
