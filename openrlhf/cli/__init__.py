"""Ours first, upstream's modules behind them."""

from openrlhf import overlay

overlay(__name__, __path__)
