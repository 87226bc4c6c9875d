"""Loads classifiers from files, modules and addresses, and saves them.

```
model.skops               read without running code from it; untrusted types are named and refused
model.onnx                run by onnxruntime
package.module:object     imported
https://host/predict      queried over HTTP
model.pkl, model.joblib   refused: unpickling runs whatever code is in the file
```

`load_classifier` loads a model from any of them; `save_classifier` writes a scikit-learn model to a
file that holds no code. `refer_to` and `open_referred` keep and follow a saved explainer's
reference to its classifier.
"""

from lapace.apps.loaders.addresses import hide_addresses, without_secrets
from lapace.apps.loaders.files import load_classifier
from lapace.apps.loaders.references import open_referred, refer_to
from lapace.apps.loaders.skops_files import save_classifier

__all__ = [
    "hide_addresses",
    "load_classifier",
    "open_referred",
    "refer_to",
    "save_classifier",
    "without_secrets",
]
