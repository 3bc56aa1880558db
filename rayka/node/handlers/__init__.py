"""What a node does with a request, one module for each family of APIs."""
