"""torch_geometric: graph layers, on graphs of several sizes, trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv, global_mean_pool

from .case import Tag, case
from .training import state_of


def _graph(nodes: int) -> Data:
    edges = torch.randint(0, nodes, (2, 4 * nodes))
    return Data(x=torch.randn(nodes, 8), edge_index=edges, y=torch.randint(0, 3, (nodes,)))


class TwoLayers(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.dropout(self.first(x, edge_index).relu(), 0.2, self.training)
        return self.second(hidden, edge_index)


def _train(model: nn.Module) -> Any:
    """Two steps on a graph and one on another size."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    graphs = [_graph(10), _graph(14)]
    for graph in (graphs[0], graphs[0], graphs[1]):
        loss = nn.functional.cross_entropy(model(graph.x, graph.edge_index), graph.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state_of(model)


@case("torch_geometric", "GCN")
def gcn(tag: Tag) -> Any:
    return _train(tag(TwoLayers(GCNConv(8, 16), GCNConv(16, 3))))


@case("torch_geometric", "GraphSAGE")
def sage(tag: Tag) -> Any:
    return _train(tag(TwoLayers(SAGEConv(8, 16), SAGEConv(16, 3))))


@case("torch_geometric", "graph attention")
def attention(tag: Tag) -> Any:
    return _train(tag(TwoLayers(GATConv(8, 8, heads=2), GATConv(16, 3))))


@case("torch_geometric", "GIN over a batch of graphs, pooled")
def pooled(tag: Tag) -> Any:
    layer = GINConv(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))

    @tag
    def embed(batch: Batch) -> torch.Tensor:
        return global_mean_pool(layer(batch.x, batch.edge_index), batch.batch, size=3)

    return embed(Batch.from_data_list([_graph(size) for size in (4, 6, 5)]))
