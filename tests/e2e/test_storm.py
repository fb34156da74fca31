"""Nothing is lost, nothing is delivered twice, nothing changes, while nodes die and freeze; small counts of kinds.py."""
import kinds
import tap

if __name__ == "__main__":
    tap.main(kinds.tests("storm"))
