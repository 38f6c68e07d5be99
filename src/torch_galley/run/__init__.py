"""Compiled + tensors -> tensors."""
