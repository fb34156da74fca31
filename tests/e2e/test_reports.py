"""Small inputs that made other serving systems leak, hang or answer wrongly, by public reports; small counts of kinds.py."""
import kinds
import tap

if __name__ == "__main__":
    tap.main(kinds.tests("reports"))
