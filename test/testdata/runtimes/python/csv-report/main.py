import pandas as pd

sales = pd.read_csv("input/2024/sales.csv", parse_dates=["date"])
print(sales.dtypes.to_string())
monthly = sales.groupby([sales.date.dt.to_period("M"), "shop"]).amount.agg(["sum", "mean", "count"])
print(monthly)
wide = sales.pivot_table(index="product", columns="shop", values="amount", aggfunc="sum", fill_value=0)
print(wide.describe().round(2))
merged = wide.reset_index().merge(pd.read_json("input/prices.json"), on="product", how="left")
merged["value"] = merged[["north", "south"]].sum(axis=1) * merged.price
merged.to_csv("output/value.csv", index=False)
print(f"total {merged.value.sum():.2f}")
ax = wide.plot.bar(stacked=True, figsize=(5, 4), title="Sales")
ax.figure.savefig("output/sales.png", dpi=80)
