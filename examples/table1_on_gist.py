"""Table 1 of the paper, on GIST

The hand-crafted part of the paper's table 1: shallow methods on GIST features of CIFAR-10, MAP beside the printed
numbers. All of it takes an hour; by default two methods that are fast. GIST of 60,000 images is computed once (some
minutes) and cached.

    python examples/table1_on_gist.py sh,itq,sdh,ksh,lfh,splh,fasth 12,24,32,48
"""

import sys

from hashlens import compare, make_hasher

names = (sys.argv[1] if sys.argv[1:] else "sh,itq").split(",")
methods = [type(make_hasher(name)).preset("published", 48) for name in names]  # the settings of their papers
bits = [int(n) for n in (sys.argv[2] if sys.argv[2:] else "12,48").split(",")]
table = compare("cifar10", methods, features=["gist"], bits=bits, out="table1", progress=True)
print(table)
table.plot().figure.savefig("table1_on_gist.png", dpi=110)
