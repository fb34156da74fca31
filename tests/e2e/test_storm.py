"""Nothing is lost, nothing is delivered twice, nothing changes, while nodes die and freeze; small counts (see soak_storm.py)."""
import tap
import storm


def test_kills_and_freezes():
    report, faults = storm.run(1500, period_s=1.5, seed=1)
    print(f"# {report}")
    storm.check(report, faults)


if __name__ == "__main__":
    tap.main(globals())
