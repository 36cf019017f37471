import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris, make_moons
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, confusion_matrix
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

X, y = load_iris(return_X_y=True)
train, test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=1, stratify=y)
forest = RandomForestClassifier(n_estimators=50, random_state=1).fit(train, y_train)
print("forest %.3f" % accuracy_score(y_test, forest.predict(test)))
print(confusion_matrix(y_test, forest.predict(test)).sum())
print("svm %.3f" % cross_val_score(make_pipeline(StandardScaler(), SVC()), X, y, cv=5).mean())
print("components", PCA(2).fit(X).explained_variance_ratio_.round(3))
print("clusters", sorted(np.bincount(KMeans(3, n_init=10, random_state=0).fit_predict(X)).tolist()))
print("slope %.3f" % LinearRegression().fit(np.arange(9).reshape(-1, 1), 2.5 * np.arange(9) + 1).coef_[0])
print("moons %.2f" % SVC(gamma=2).fit(*make_moons(200, noise=0.1, random_state=0)).score(*make_moons(200, noise=0.1, random_state=1)))
