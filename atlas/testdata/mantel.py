# Makes mantel.json: which tokens of 24 texts of two topics chose an expert, and the pooled ratio of its rates inside and
# outside the first topic over strata of the same token, by statsmodels' Mantel-Haenszel estimate.
#   python3 mantel.py > mantel.json        (NumPy, statsmodels)
import json
import numpy as np
import statsmodels.api as sm

rng = np.random.default_rng(7)
topic, tokens, chosen = [], [], []
for text in range(24):
    c = text % 2
    # Token 0 is common in topic 0 and chosen anyway: without strata the ratio would be larger. Token 5 is of topic 1 only.
    words = rng.choice(6, size=20, p=[0.4, 0.2, 0.2, 0.1, 0.1, 0.0] if c == 0 else [0.1, 0.2, 0.2, 0.2, 0.2, 0.1])
    rate = np.where(words == 0, 0.7, 0.2) * (1.3 if c == 0 else 1.0)
    topic.append(c)
    tokens.append(words.tolist())
    chosen.append((rng.random(20) < rate).astype(int).tolist())
tables = []
for word in range(6):
    t = np.zeros((2, 2))  # rows: topic 0, the rest; columns: chosen, not
    for c, w, s in zip(topic, tokens, chosen):
        for x, y in zip(w, s):
            if x == word:
                t[c, 1 - y] += 1
    if t[0].sum() > 0 and t[1].sum() > 0:
        tables.append(t)
pooled = sm.stats.StratifiedTable(tables)
crude = sum(tables)
print(json.dumps({"topic": topic, "tokens": tokens, "chosen": chosen, "ratio": pooled.riskratio_pooled,
                  "crude": crude[0, 0] / crude[0].sum() / (crude[1, 0] / crude[1].sum())}))
