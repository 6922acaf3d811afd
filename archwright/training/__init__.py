"""How is it trained? The one room that meets all the others."""
