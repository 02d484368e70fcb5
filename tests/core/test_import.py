"""Does `import rooftile` stay what a running model can afford: quick, and standard library only?"""

import subprocess
import sys

import rooftile

PROBE = """
import sys, time
before = set(sys.modules)
start = time.perf_counter()
import rooftile
took = time.perf_counter() - start
new = {name.split('.')[0] for name in set(sys.modules) - before}
foreign = sorted(n for n in new if n not in sys.stdlib_module_names and n != 'rooftile')
print(took, foreign)
"""


def probe(extra: str = "") -> list[str]:
    run = subprocess.run([sys.executable, "-c", PROBE + extra], capture_output=True, text=True, check=True)
    return run.stdout.split(maxsplit=1)


def test_import_is_quick_and_standard_library_only() -> None:
    runs = [probe() for _ in range(3)]
    assert min(float(took) for took, _ in runs) < 0.060
    assert all(foreign.strip() == "[]" for _, foreign in runs)


def test_problems_and_plans_need_no_package_either() -> None:
    extra = """
rooftile.Gemm, rooftile.LaunchPlan, rooftile.parse_problem, rooftile.FieldError
import rooftile.device
rooftile.device.local_cpu
assert not {'numpy', 'urllib3', 'cupy', 'socket', 'ssl'} & set(sys.modules), sorted(sys.modules)
"""
    probe(extra)


def test_every_listed_name_resolves() -> None:
    for name in rooftile.__all__:
        assert getattr(rooftile, name) is not None
        assert name in dir(rooftile)


def test_unknown_names_are_attribute_errors() -> None:
    assert not hasattr(rooftile, "no_such_thing")
