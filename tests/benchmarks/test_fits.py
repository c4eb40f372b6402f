"""Lines and power laws are found again in points that were made from them."""

import random

import pytest
from fits import fit, fit_exponent, fit_line

SIZES = [1.0, 2.0, 4.0, 8.0]


def test_a_line_is_found_with_its_fixed_cost():
    assert fit_line(SIZES, [5 + 2 * x for x in SIZES])[:2] == pytest.approx((5, 2))
    intercept, slope, residual = fit_line(SIZES, [-0.5 + 2 * x for x in SIZES], least=0.0)
    assert intercept == 0 and slope < 2 and residual > 0  # no cost is negative


def test_a_residual_counts_in_proportion_to_the_time():
    ys = [10 * 1.02, 20 * 1.02, 40 * 1.02, 80 * 0.9]
    intercept, slope, best = fit_line(SIZES, ys)
    for moved in ((intercept + 0.1, slope), (intercept, slope * 1.01), (0.0, 10.0)):
        assert sum(((moved[0] + moved[1] * x - y) / y) ** 2 for x, y in zip(SIZES, ys, strict=True)) > best


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.3, 2.0])
@pytest.mark.parametrize("fixed", [0.0, 0.1, 20.0])
def test_the_exponent_of_the_marginal_cost_does_not_see_the_fixed_cost(exponent, fixed):
    found, constant = fit_exponent(SIZES, [fixed + 3 * x**exponent for x in SIZES])
    assert found == pytest.approx(exponent, abs=0.02)
    assert constant == pytest.approx(fixed, abs=0.3)


def test_noise_of_a_percent_does_not_make_a_line_something_else():
    draw = random.Random(0)
    sizes = [1, 2, 5, 10, 20, 40]
    found = [fit_exponent(sizes, [(2 + x) * draw.gauss(1, 0.01) for x in sizes])[0] for _ in range(20)]
    assert max(found) < 1.1 and min(found) > 0.9


def test_a_fit_says_how_far_the_points_are_from_the_line():
    straight, bent = fit(SIZES, [5 + 2 * x for x in SIZES]), fit(SIZES, [x**2 for x in SIZES])
    assert (straight.r_squared, straight.deviation) == pytest.approx((1, 0))
    assert straight.power < 0.6 < straight.exponent  # with its fixed cost, a line looks flatter than it is
    assert bent.r_squared < 0.95 and bent.deviation > 0.1 and bent.power == pytest.approx(2)
    flat = fit(SIZES, [5.0] * 4)
    assert (flat.slope, flat.r_squared, flat.deviation) == (0, 1, 0)
    with pytest.raises(ValueError, match="three points"):
        fit([1, 2], [1, 2])
