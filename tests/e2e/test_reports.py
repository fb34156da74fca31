"""Small inputs that made other serving systems leak, hang or answer wrongly, by public reports; small counts (see soak_all.py)."""
import tap
import strikes


def test_cancel_in_transfer_then_kill():
    print(f"# {strikes.cancel_in_transfer_then_kill(12)}")


def test_cancel_before_d_admits():
    print(f"# {strikes.cancel_before_d_admits(20)}")


def test_cancel_in_the_last_chunk():
    print(f"# {strikes.cancel_in_last_chunk(20)}")


def test_frozen_while_a_transfer_completes():
    print(f"# {strikes.frozen_in_transfer(2)}")


def test_frozen_past_the_lease():
    print(f"# {strikes.frozen_past_the_lease(1)}")


def test_a_node_dies_between_choice_and_dispatch():
    print(f"# {strikes.dies_between_choice_and_dispatch(4)}")


def test_restarts_on_one_address():
    print(f"# {strikes.restarts_on_one_address(10)}")


def test_distinct_prompts_side_by_side():
    print(f"# {strikes.distinct_prompts(200)}")


if __name__ == "__main__":
    tap.main(globals())
