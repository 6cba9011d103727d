"""A scikit-learn pipeline with grid search

Every method is a transformer with `score` (MAP), so that `Pipeline`, `GridSearchCV` and `clone` work as usual.
"""

from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hashlens import KSH

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=300, random_state=0, stratify=y)

pipeline = make_pipeline(StandardScaler(), PCA(32, random_state=0), KSH(16))
grid = GridSearchCV(pipeline, {"pca__n_components": [16, 32], "ksh__n_anchors": [100, 300]}, cv=3, error_score="raise")
grid.fit(X_train, y_train)

print("best settings:", grid.best_params_)
print(f"MAP of rows held back, mean of three folds: {grid.best_score_:.3f}")
print(f"MAP of test rows among themselves: {grid.score(X_test, y_test):.3f}")
codes = grid.transform(X_test[:3])
print("three codes:", codes.astype(int).tolist())
