"""What can this machine do, and what is chosen for it?"""
