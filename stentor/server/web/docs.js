// The page /docs: Swagger UI on this server's own description. All of it comes from this server.
window.SwaggerUIBundle({ url: 'openapi.json', dom_id: '#docs', deepLinking: true })
