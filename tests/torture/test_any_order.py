"""The state machine of tests/bank/test_any_order with many more examples."""

from hypothesis import seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from tests.bank.test_any_order import OPTIONS, AnyOrder
from tests.bank.test_any_order import pytestmark as pytestmark
from tests.torture.faults import LONG, faults


@LONG
def test_any_order_of_operations_gives_the_averages_of_the_oracle() -> None:
    with faults("any order: the whole bank") as count:

        class Counted(AnyOrder):
            @invariant()
            def count_step(self) -> None:
                count.count(looks=1)

            def teardown(self) -> None:
                count.count(orders=1)

        run_state_machine_as_test(
            seed(count.seed)(Counted), settings=settings(max_examples=260, stateful_step_count=60, **OPTIONS)
        )
        count.count(wrong=0)
