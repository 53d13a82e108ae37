from mpt_cli.telemetry.format import format_count, format_number, format_scale, format_seconds, format_share

INF = float("inf")


def test_a_scale_is_a_whole_number_and_below_1_a_power_of_two() -> None:
    scales = 65536.0, 2.0**20, 2.0**21, 3.0e7, 2.0**-14, 1234.5, INF, 0.0, None
    assert " ".join(map(format_scale, scales)) == "65536 1048576 2097152 30000000 2^-14 1234.5 inf 0 none"


def test_numbers_stay_short_whatever_their_size() -> None:
    values = float("nan"), -INF, -0.5, 123456.0, 9.9e-4
    assert " ".join(map(format_number, values)) == "nan -inf -0.5000 1.23e+05 9.90e-04"
    assert [format_seconds(59.9), format_seconds(60.0), format_seconds(86400.0)] == ["59.9 s", "1:00", "24:00:00"]
    assert [format_share(1, 100_000), format_share(50, 100), format_count(99.5)] == ["0.001%", "50.0%", "99.5"]
