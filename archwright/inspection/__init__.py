"""What happens inside a model while it trains?"""
