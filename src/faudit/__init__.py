"""faudit: did a network trained without backpropagation learn in depth?"""

__version__ = "0.1.0"
