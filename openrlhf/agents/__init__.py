"""Shared pieces for agents that use tools: chat rendering, tools, sandbox, retrieval, environments."""
