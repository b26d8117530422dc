# Checks scipy.json against NumPy and SciPy and makes contrast.json. The formulas are those named in stats_test.go, written
# here from their definitions, with draws of their own.
#   cd atlas/stats/testdata && python3 reference.py        (NumPy, SciPy; a minute)
import json
from itertools import combinations
import numpy as np
from scipy import stats

r = json.load(open("scipy.json"))
X, T, K = np.array(r["x"]), np.array(r["topic"]), np.array(r["cluster"])
C, E = 3, X.shape[1]


def near(name, got, want, tolerance):
    d = np.abs(np.array(got) - np.array(want)).max()
    print(f"{name:12} differs by at most {d:.2g}")
    assert d <= tolerance, name


def variance(e, c):
    rows = np.where(T == c)[0]
    clusters = np.unique(K[rows])
    m, g = X[rows, e].mean(), len(clusters)
    return g / (g - 1) * sum(((X[rows, e] - m)[K[rows] == k]).sum() ** 2 for k in clusters) / len(rows) ** 2


M = np.array([[X[T == c, e].mean() for c in range(C)] for e in range(E)])
V = np.array([[variance(e, c) for c in range(C)] for e in range(E)])
near("means", M, r["means"], 1e-9)
near("variances", V, r["variances"], 1e-9)
a = M.mean(1, keepdims=True)
rest, vrest = (M.sum(1, keepdims=True) - M) / (C - 1), (V.sum(1, keepdims=True) - V) / (C - 1) ** 2
near("log_ratio", np.log((M + a) / (rest + a)) / np.sqrt(V / (M + a) ** 2 + vrest / (rest + a) ** 2), r["log_ratio"], 1e-7)
near("difference", (M - rest) / np.sqrt(V + vrest), r["difference"], 1e-7)
near("specificity", [1 - stats.entropy(m) / np.log(C) for m in M], r["specificity"], 1e-9)
near("bh", stats.false_discovery_control(r["bh"]["p"]), r["bh"]["q"], 1e-12)
for s, n, low, high in r["wilson"]:
    ci = stats.binomtest(int(s), int(n)).proportion_ci(method="wilson")
    near("wilson", [ci.low, ci.high], [low, high], 1e-9)
near("pearson", stats.pearsonr(r["pearson"]["a"], r["pearson"]["b"])[0], r["pearson"]["r"], 1e-9)


def welch(x, y):
    return (x.mean() - y.mean()) / np.sqrt(x.var(ddof=1) / len(x) + y.var(ddof=1) / len(y))


y = np.array(r["exact"]["y"])
all_t = [abs(welch(y[list(c)], np.delete(y, list(c)))) for c in combinations(range(len(y)), 5)]
t = welch(y[:5], y[5:])
near("exact", [t, np.mean(np.array(all_t) >= abs(t) - 1e-12)], [r["exact"]["t"][0], r["exact"]["p"][int(np.argmax(r["exact"]["t"]))]], 1e-9)

# Bootstrap-t of the logit of affinity, clusters drawn anew within topics.
b, rng = r["bootstrap"], np.random.default_rng(0)
own = M + b["pseudo"]
others = M.sum(1, keepdims=True) - M + b["pseudo"] * (C - 1)
near("lift", C * own / (own + others), b["lift"], 1e-9)
logit, e = np.log(own / others), np.sqrt(V / own**2 + (V.sum(1, keepdims=True) - V) / others**2)
groups = [[np.where((T == c) & (K == k))[0] for k in np.unique(K[T == c])] for c in range(C)]
Z = np.empty((20000, E, C))
for i in range(len(Z)):
    m, v = np.empty((E, C)), np.empty((E, C))
    for c in range(C):
        rows = [X[groups[c][j]] for j in rng.integers(len(groups[c]), size=len(groups[c]))]
        n, g = sum(map(len, rows)), len(rows)
        m[:, c] = sum(q.sum(0) for q in rows) / n
        v[:, c] = g / (g - 1) * sum(((q - m[:, c]).sum(0)) ** 2 for q in rows) / n**2
    o = m + b["pseudo"]
    s = m.sum(1, keepdims=True) - m + b["pseudo"] * (C - 1)
    with np.errstate(all="ignore"):
        Z[i] = (np.log(o / s) - logit) / np.sqrt(v / o**2 + (v.sum(1, keepdims=True) - v) / s**2)
for name, q in (("low", 0.975), ("high", 0.025)):
    near(name, C / (1 + np.exp(-(logit - np.quantile(Z, q, axis=0) * e))), b[name], 0.05)

# Difference of two means by bootstrap-t, 200,000 draws; Welch's interval beside it for the order of size.
x, z = rng.normal(-0.004, 0.006, 12).round(5), rng.normal(0.001, 0.004, 13).round(5)
d = x.mean() - z.mean()
se = lambda u, w: np.sqrt(u.var(axis=-1, ddof=1) / u.shape[-1] + w.var(axis=-1, ddof=1) / w.shape[-1])
xs, zs = rng.choice(x, (200000, len(x))), rng.choice(z, (200000, len(z)))
q = (xs.mean(1) - zs.mean(1) - d) / se(xs, zs)
low, high = d - np.quantile(q, 0.975) * se(x, z), d - np.quantile(q, 0.025) * se(x, z)
w = stats.ttest_ind(x, z, equal_var=False).confidence_interval()
json.dump({"a": x.tolist(), "b": z.tolist(), "difference": d, "error": float(se(x, z)), "low": low, "high": high, "welch": [w.low, w.high]}, open("contrast.json", "w"))
