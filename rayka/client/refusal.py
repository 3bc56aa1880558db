"""How a client words what a node refused: the subject, its cluster, and what the node said, each once."""

from rayka.errors import ApiError, ErrorCode, error_for


def refusal(code: ErrorCode, message: str, *, subject: str, cluster_name: str) -> ApiError:
    """The error of a response about one subject, such as `topic 'orders'`."""
    said = message or code.name
    if said.startswith(subject):
        return error_for(code, f"cluster {cluster_name!r}: {said}")
    return error_for(code, f"{subject} of cluster {cluster_name!r}: {said}")
