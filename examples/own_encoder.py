"""Write an encoder of your own and use it in a transform, a model and a checkpoint.

python examples/own_encoder.py
"""

import tempfile

import torch
from torch_geometric.data import Data

import tg_lpe
from tg_lpe.testing import assert_permutation_equivariant


@tg_lpe.encoders.register
class DegreeEmbedding(tg_lpe.Encoder):
    """Encode a node by a learned vector for its degree, and an edge by the sum of the vectors of its ends.

    Args:
        channels: width of both encodings.
        max_degree: larger degrees share its vector.
    """

    def __init__(self, channels: int = 8, max_degree: int = 8) -> None:
        super().__init__()
        self.out_channels = self.edge_out_channels = channels
        self.rows = torch.nn.Embedding(max_degree + 1, channels)

    def precompute(self, graph):
        """Compute the part without weights: training calls this once for a dataset, not in every step."""
        return {"node_degree": graph.laplacian_diagonal(torch.empty(0)).round().long()}

    def encode(self, graph, inputs):
        degree = (inputs.precomputed or self.precompute(graph))["node_degree"]
        node = self.rows(degree.clamp(max=self.rows.num_embeddings - 1))
        tail, head = graph.edge_index
        is_edge = (tail != head).unsqueeze(-1)  # self-loops have the encoding zero
        return tg_lpe.Encoding(node, (node[tail] + node[head]) * is_edge)


if __name__ == "__main__":
    star = Data(edge_index=torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]]), num_nodes=4)
    encoder = DegreeEmbedding()
    assert_permutation_equivariant(encoder, star.edge_index, num_nodes=4)
    print(tg_lpe.AddPositionalEncoding(encoder)(star))

    model = tg_lpe.GraphTransformer(encoder=encoder, hidden_channels=16, num_layers=2, heads=4)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        restored = tg_lpe.GraphTransformer.from_pretrained(folder)
    inputs = {"x": None, "edge_index": star.edge_index, "num_nodes": 4}
    print("same prediction after loading:", torch.equal(model.eval()(**inputs), restored.eval()(**inputs)))
