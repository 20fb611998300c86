"""Validates Kubernetes manifests against the schemas of the versions named, and prints them as JSON.

Usage: kubernetes.py VERSION[,VERSION…] FILE…
Exits with 1 and says what is wrong, field and file, when a schema does not hold.
"""

import json
import sys

import kubernetes_validate
import yaml


def main():
    versions, files = sys.argv[1].split(","), sys.argv[2:]
    documents, wrong = [], []
    for name in files:
        with open(name, encoding="utf-8") as text:
            for document in yaml.load_all(text, Loader=UniqueKeys):
                documents.append({"file": name.rpartition("/")[2], "document": document})
                wrong.extend(f"{name}: {problem}" for problem in problems(document, versions))
    if wrong:
        sys.exit("\n".join(wrong))
    json.dump(documents, sys.stdout)


def problems(document, versions):
    for version in versions:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = "/".join(str(part) for part in error.path)
            yield f"{document['kind']} in {version}: /{path}: {error.message}"


class UniqueKeys(yaml.SafeLoader):
    """A key that stands twice is a mistake that the second one hides."""

    def construct_mapping(self, node, deep=False):
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{name} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


if __name__ == "__main__":
    main()
