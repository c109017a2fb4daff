"""Cache forms that give up a little accuracy for memory or traffic. All are off by default."""
