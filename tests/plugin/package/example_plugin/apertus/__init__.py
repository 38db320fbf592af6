"""Apertus (Swiss AI 2025, arXiv 2509.14233): a decoder whose activation, xIELU, has two parameters in each layer (Huang
and Schlag 2024, arXiv 2411.13010)."""
